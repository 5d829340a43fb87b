#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/units.h"
#include "core/model/lora.h"
#include "planner/advice/advice.h"
#include "planner/advice/flips.h"
#include "planner/report/choice_json.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"
#include "planner/request/methods.h"

namespace zeroplan {
namespace {

std::string Capital(std::string_view words) {
  std::string text(words);
  text.front() = static_cast<char>(std::toupper(text.front()));
  return text;
}

std::string TypedMemory(uint64_t bytes) {
  return FormatTypedBytes(TypedBytes(bytes, Rounding::kUp));
}

uint64_t Bytes(const Footprint& footprint, std::initializer_list<std::string_view> classes) {
  uint64_t bytes = 0;
  for (const NamedBytes& named : GpuClasses(footprint)) {
    if (std::find(classes.begin(), classes.end(), named.name) != classes.end()) {
      bytes += named.bytes;
    }
  }
  return bytes;
}

std::string Table(const MethodComparison& comparison, const Paints& paints) {
  ReportColumns table;
  table.BeginGroup("");
  table.Add("", 1, true);
  table.Add("method", 6, true);
  table.Add("trained", 7);
  table.Add("fits", 4);
  table.BeginGroup("fastest");
  table.Add("tok/s", 6);
  table.Add("step", 7);
  table.BeginGroup("GB on one GPU at its peak");
  table.Add("params", 6);
  table.Add("states", 6);
  table.Add("activ", 5);
  table.Add("buffers", 7);
  table.BeginGroup("GPU GB");
  table.Add(OfCapacity(comparison.cluster.gpu_capacity_bytes), 7);
  table.BeginGroup("host GB");
  table.Add(OfCapacity(comparison.cluster.host_capacity_bytes), 7);
  std::string text = table.Header(paints);
  for (size_t i = 0; i < comparison.methods.size(); ++i) {
    const MethodChoice& choice = comparison.methods[i];
    const bool chosen = i == comparison.answer.method;
    std::vector<std::string> cells = {chosen ? ">" : "",
                                      std::string(TuningMethodName(choice.method)),
                                      FormatCount(choice.model.TrainedParamCount())};
    if (choice.plan) {
      const ChoiceEstimate& best = choice.plan->choice;
      const Footprint& taken = best.footprint;
      cells.insert(cells.end(),
                   {"yes", FormatRate(*best.time.tokens_per_second),
                    FormatSeconds(*best.time.total_seconds), GigabyteCell(Bytes(taken, {"params"})),
                    GigabyteCell(Bytes(taken, {"grads", "optimizer"})),
                    GigabyteCell(Bytes(taken, {"activations"})),
                    GigabyteCell(Bytes(taken, {"buffers", "runtime"})),
                    GigabyteCell(taken.totals().gpu_bytes), GigabyteCell(taken.host.total())});
    } else {
      cells.push_back(choice.gave_up ? "?" : "no");
      cells.insert(cells.end(), table.count() - cells.size(), "-");
    }
    const std::string_view paint = chosen ? paints.green : choice.plan ? "" : paints.dim;
    text += fmt::format("{}{}{}\n", paint, table.Row(cells), paint.empty() ? "" : paints.reset);
  }
  return text;
}

// "58880 tokens, 59008 do not".
std::string LimitText(const MethodLimit& limit, const std::string& unit, const char* end) {
  const std::string next =
      !limit.next
          ? fmt::format(", {}", end)
          : fmt::format(", {} {}", *limit.next, limit.next_known ? "do not" : "were not found to");
  return fmt::format("{}{}{}", limit.fits, unit, next);
}

// The choice of a method, or what it lacks.
std::string BestText(const MethodChoice& choice) {
  std::string text = Capital(TuningMethodWords(choice.method)) + ": ";
  if (choice.plan) {
    return text + fmt::format("fastest by {}, {}{}.",
                              choice.plan->runtime->Label(choice.plan->setup),
                              BatchText(choice.plan->setup.batch), WithinText(choice.gap));
  }
  text += choice.gave_up ? "nothing was found that fits." : "nothing fits.";
  if (!choice.change.empty()) {
    text += fmt::format(" Smallest change that fits: {}.", choice.change);
  }
  if (!choice.change_without_disk.empty()) {
    text += fmt::format(" Without a disk: {}.", choice.change_without_disk);
  }
  return text;
}

std::string MethodText(const MethodChoice& choice, const MethodComparison& comparison) {
  std::string text = BestText(choice);
  if (choice.least_gpu_bytes) {
    text += fmt::format(" It fits from {} a GPU on{}: {}.", TypedMemory(*choice.least_gpu_bytes),
                        WithinText(choice.least_gap), choice.least);
  } else {
    text += choice.least_gave_up ? " From which GPU memory on it fits was not found."
                                 : " The host's memory is short for any GPU.";
  }
  std::vector<std::string> limits;
  if (choice.sequence) {
    limits.push_back("sequences of up to " +
                     LimitText(*choice.sequence, " tokens", "the longest there are"));
    if (const int64_t made_for = choice.sequence->made_for; made_for > 0) {
      limits.back() += fmt::format(" (the model was made for {})", made_for);
    }
  }
  if (choice.micro_batch) {
    limits.push_back(
        "micro-batches of up to " +
        LimitText(*choice.micro_batch,
                  fmt::format(" sequence{} of {} tokens", choice.micro_batch->fits == 1 ? "" : "s",
                              comparison.seq_len),
                  "the most that are planned") +
        (comparison.left_out.empty() ? "" : fmt::format(" (without {})", comparison.left_out)));
  }
  if (!limits.empty()) text += fmt::format(" Here fit {}.", fmt::join(limits, "; "));
  return text;
}

// "LoRA or QLoRA".
std::string Names(const std::vector<size_t>& methods, const MethodComparison& comparison) {
  std::vector<std::string_view> names;
  names.reserve(methods.size());
  for (const size_t i : methods) names.push_back(TuningMethodWords(comparison.methods[i].method));
  return fmt::format("{}", fmt::join(names, " or "));
}

// The method to use, the rule that selects it, and its speed relative to the others.
std::string AnswerText(const MethodComparison& comparison) {
  const MethodAnswer& answer = comparison.answer;
  if (!answer.method) return "";
  const MethodChoice& best = comparison.methods[*answer.method];
  const double speed = *best.plan->choice.time.tokens_per_second;
  std::vector<std::string> ratios;
  for (const MethodChoice& other : comparison.methods) {
    if (&other == &best || !other.plan) continue;
    ratios.push_back(fmt::format("{:.2f} times {}",
                                 speed / *other.plan->choice.time.tokens_per_second,
                                 TuningMethodWords(other.method)));
  }
  const std::string rate = RateText(speed);
  std::string unproven;
  if (answer.possible.size() > 1) {
    unproven = fmt::format(
        " Not proven: it could be {}, as the searches are within {} %; "
        "⟦effort⟧ 4 looks longer.",
        Names(answer.possible, comparison), FormatPercent(answer.gap));
  }
  if (ratios.empty()) {
    return fmt::format("{} {} fits here: {}.{}", answer.alone ? "Only" : "Of what was found",
                       TuningMethodWords(best.method), rate, unproven);
  }
  return fmt::format(
      "Answer: {}, {}, by prediction {}. The answer is the fastest that fits; full tuning goes "
      "before LoRA, and LoRA before QLoRA, where that costs at most {:.0f} %.{}",
      TuningMethodWords(best.method), rate, fmt::join(ratios, " and "), 100 * kMethodMargin,
      unproven);
}

struct FigureWords {
  const char* field;
  const char* what;
  const char* unit;  // for values other than memory
};
constexpr FigureWords kFigureWords[] = {
    {"⟦seq_len⟧", "Answer by sequence", " tokens"},
    {"⟦global_batch⟧", "Answer by sequences a step", ""},
    {"⟦gpu_memory⟧", "Answer by memory of a GPU", ""},
};

// A row for each range of values and its answer.
std::string FigureText(const MethodFigure& figure, const MethodComparison& comparison,
                       size_t columns) {
  const FigureWords& words =
      *std::find_if(std::begin(kFigureWords), std::end(kFigureWords),
                    [&](const FigureWords& w) { return figure.field == w.field; });
  const bool memory = figure.field == "⟦gpu_memory⟧";
  const auto value = [&](int64_t at) {
    return memory ? FormatTypedBytes(static_cast<uint64_t>(at)) : std::to_string(at);
  };
  std::vector<std::pair<std::string, std::string>> rows;
  for (size_t i = 0; i < figure.ranges.size(); ++i) {
    const MethodRange& range = figure.ranges[i];
    const MethodAnswer& answer = range.answer;
    std::string where = range.from == range.to
                            ? value(range.from)
                            : fmt::format("{} to {}", value(range.from), value(range.to));
    if (!answer.method) {
      // Less memory and longer sequences do not fit either.
      if (i == 0) where = "up to " + value(range.to);
      if (i + 1 == figure.ranges.size()) where = "from " + value(range.from);
      rows.emplace_back(where,
                        answer.possible.empty() ? "nothing fits" : "nothing was found that fits");
      continue;
    }
    const std::string names = Names(answer.possible, comparison);
    rows.emplace_back(where, fmt::format("{}{}{}", names, answer.alone ? " fits alone" : "",
                                         WithinText(answer.gap)));
  }
  std::string beside;
  if (figure.field == "⟦seq_len⟧" && comparison.global_batch) {
    beside = fmt::format(" with ⟦global_batch⟧ {}", *comparison.global_batch);
  }
  std::string text = Wrap(fmt::format("{} (now {}{}; {}{} sets it), by doubling:", words.what,
                                      value(figure.now), words.unit, figure.field, beside),
                          2, columns);
  size_t wide = 0;
  for (const auto& [where, answer] : rows) wide = std::max(wide, where.size());
  for (const auto& [where, answer] : rows)
    text += fmt::format("    {:<{}}  {}\n", where, wide, answer);
  return text;
}

std::string Heading(const MethodComparison& comparison) {
  const ModelSpec model = BaseModel(comparison.methods.front().model);
  std::string of = ModelLine(model, comparison.seq_len);
  if (!comparison.runtime->facts().has_recipe) return of;
  return fmt::format("{} under {}, {}; {}", model.name, comparison.runtime->version(),
                     RecipeText(comparison.recipe), of);
}

}  // namespace

std::string MethodsScreen(const MethodComparison& comparison, const ScreenNotes& notes,
                          size_t columns, bool colour) {
  std::string text = Wrap(Heading(comparison), 2, columns) +
                     Wrap(ClusterLine(comparison.cluster), 2, columns) +
                     Table(comparison, Paints(colour));
  for (size_t i = 0; i < comparison.methods.size(); ++i) {
    const MethodChoice& choice = comparison.methods[i];
    if (i != comparison.answer.method && choice.plan) continue;
    if (choice.plan) {
      text += Wrap(BestText(choice), 2, columns);
    } else {
      // The options of the smallest change; what they bring stands under --explain.
      const std::string& change =
          choice.change_without_disk.empty() ? choice.change : choice.change_without_disk;
      text += Wrap(fmt::format("{}: {}{}.", Capital(TuningMethodWords(choice.method)),
                               choice.gave_up ? "nothing was found that fits" : "nothing fits",
                               change.empty() ? ""
                                              : fmt::format("; with {} it does",
                                                            change.substr(0, change.find(" (")))),
                   2, columns);
    }
    if (!choice.running.empty()) text += Wrap(choice.running, 2, columns);
  }
  text += Wrap(AnswerText(comparison), 2, columns);
  return text + ScreenEnd(notes, columns, colour);
}

std::string MethodsText(const MethodComparison& comparison, size_t columns, bool colour) {
  const Paints paints(colour);
  std::string text = fmt::format("{}{}\n\n{}\n", Wrap(Heading(comparison), 2, columns),
                                 ClusterLine(comparison.cluster), Table(comparison, paints));
  if (const std::string answer = AnswerText(comparison); !answer.empty()) {
    text += Wrap(answer, 2, columns);
  }
  for (const MethodChoice& choice : comparison.methods) {
    text += Wrap(MethodText(choice, comparison), 2, columns);
  }
  for (const MethodFigure& figure : comparison.figures) {
    text += FigureText(figure, comparison, columns);
  }
  if (comparison.goal.data) {
    for (const std::string& part :
         DataParagraphs(comparison.goal, comparison.batch, comparison.methods.front().model)) {
      text += Wrap(part, 2, columns);
    }
  }
  for (const MethodChoice& choice : comparison.methods) {
    if (choice.running.empty()) continue;
    text += Wrap(fmt::format("{}. {}", Capital(TuningMethodWords(choice.method)), choice.running),
                 2, columns);
  }
  std::vector<std::string_view> names;
  for (const MethodChoice& choice : comparison.methods) {
    names.push_back(TuningMethodName(choice.method));
  }
  return text + Wrap(fmt::format("⟦method⟧ {} plans one of them{}.", fmt::join(names, " or "),
                                 comparison.runtime->facts().bounds_search
                                     ? ""
                                     : "; with ⟦largest⟧ seq-len it finds the longest sequence"),
                     2, columns);
}

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson LimitJson(const std::optional<MethodLimit>& limit) {
  if (!limit) return nullptr;
  return {{"fits", limit->fits}, {"next", Nullable(limit->next)}, {"proven", limit->next_known}};
}

OrderedJson AnswerJson(const MethodAnswer& answer, const MethodComparison& comparison) {
  const auto name = [&](size_t i) { return TuningMethodName(comparison.methods[i].method); };
  OrderedJson possible = OrderedJson::array();
  for (const size_t i : answer.possible) possible.push_back(name(i));
  return {{"method", answer.method ? OrderedJson(name(*answer.method)) : OrderedJson(nullptr)},
          {"possible", std::move(possible)},
          {"alone", answer.alone},
          {"gap", answer.gap}};
}

}  // namespace

std::string MethodsJson(const MethodComparison& comparison) {
  OrderedJson methods = OrderedJson::array(), figures = OrderedJson::array();
  for (const MethodChoice& choice : comparison.methods) {
    methods.push_back(
        {{"method", TuningMethodName(choice.method)},
         {"params", choice.model.ParamCount()},
         {"trained_params", choice.model.TrainedParamCount()},
         {"fits", choice.plan.has_value()},
         {"gave_up", choice.gave_up},
         {"choice", choice.plan ? RuntimeChoiceJson(choice.plan->choice, RecipeOf(*choice.plan))
                                : OrderedJson(nullptr)},
         {"gap", choice.gap},
         {"least_gpu_bytes", Nullable(choice.least_gpu_bytes)},
         {"least_gap", choice.least_gap},
         {"least_choice", TextOrNull(choice.least)},
         {"smallest_change", TextOrNull(choice.change)},
         {"smallest_change_without_disk", TextOrNull(choice.change_without_disk)},
         {"seq_len", LimitJson(choice.sequence)},
         {"micro_batch", LimitJson(choice.micro_batch)}});
  }
  for (const MethodFigure& figure : comparison.figures) {
    OrderedJson ranges = OrderedJson::array();
    for (const MethodRange& range : figure.ranges) {
      OrderedJson json = {{"from", range.from}, {"to", range.to}};
      json.update(AnswerJson(range.answer, comparison));
      ranges.push_back(std::move(json));
    }
    figures.push_back(
        {{"option", figure.field}, {"now", figure.now}, {"ranges", std::move(ranges)}});
  }
  const bool programs = !comparison.runtime->facts().has_recipe;
  OrderedJson json = {{"schema", "zeroplan.methods/1"},
                      {"runtime", comparison.runtime->version()},
                      {"recipe", programs ? OrderedJson(nullptr) : RecipeJson(comparison.recipe)},
                      {"answer", AnswerJson(comparison.answer, comparison)},
                      {"methods", std::move(methods)},
                      {"changes", std::move(figures)}};
  if (comparison.goal.data) json["data"] = DataJson(comparison.goal, comparison.batch);
  return json.dump(2) + "\n";
}

}  // namespace zeroplan
