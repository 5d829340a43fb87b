// The built-in profile that somebody's words mean.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/unequal.h"

namespace zeroplan {
namespace {

// The pieces of names that tell apart cards of one model; what names leave out as often as not.
constexpr std::string_view kPieces[] = {"sxm",    "pcie", "nvl", "super",
                                        "laptop", "ada",  "rtx", "ti"};
constexpr std::string_view kIdleWords[] = {"nvidia", "geforce", "tesla",     "standard",
                                           "gpu",    "rtx",     "generation"};

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

std::string_view PieceAt(std::string_view word) {
  for (const std::string_view piece : kPieces) {
    if (word.starts_with(piece)) return piece;
  }
  return {};
}

size_t CountWhile(std::string_view word, size_t at, bool (*is)(char)) {
  size_t end = at;
  while (end < word.size() && is(word[end])) ++end;
  return end - at;
}

// Characters of the token that a word in small letters begins with: a piece ("sxm4"), a number with
// its unit ("80gb", "8x"), or letters, digits and letters up to a piece ("l40s", "4070").
size_t TokenLength(std::string_view word) {
  if (const std::string_view piece = PieceAt(word); !piece.empty()) {
    return piece.size() + (piece == "sxm" ? CountWhile(word, piece.size(), IsDigit) : 0);
  }
  size_t end = CountWhile(word, 0, IsLetter);
  end += CountWhile(word, end, IsDigit);
  const bool number = IsDigit(word[0]);
  if (number && word.substr(end).starts_with("gb")) return end + 2;
  if (number && word.substr(end).starts_with("x")) return end + 1;
  while (end < word.size() && IsLetter(word[end]) && PieceAt(word.substr(end)).empty()) ++end;
  return end;
}

// "NVIDIA A100-SXM4-80GB" is {"a100", "sxm4", "80gb"}. An HGX board is what the DGX of that GPU
// has.
std::vector<std::string> Tokens(std::string_view name) {
  std::vector<std::string> tokens;
  std::string word;
  const auto end_word = [&] {
    for (std::string_view rest = word; !rest.empty();) {
      const size_t length = TokenLength(rest);
      std::string token(rest.substr(0, length));
      rest.remove_prefix(length);
      if (token == "hgx") token = "dgx";
      const bool number =
          !tokens.empty() && CountWhile(tokens.back(), 0, IsDigit) == tokens.back().size();
      if (token == "gb" && number) {
        tokens.back() += token;
      } else if (std::find(std::begin(kIdleWords), std::end(kIdleWords), token) ==
                 std::end(kIdleWords)) {
        tokens.push_back(std::move(token));
      }
    }
    word.clear();
  };
  for (const char c : name) {
    if (IsDigit(c) || IsLetter(c)) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      end_word();
    }
  }
  end_word();
  return tokens;
}

bool SameToken(const std::string& a, const std::string& b) {
  const bool modules = a.starts_with("sxm") && b.starts_with("sxm");
  return a == b || a + "gb" == b || (modules && (a == "sxm" || b == "sxm"));
}

// A card's memory, as people add it to a name: 24 GB and 24 GiB are both "24gb".
std::vector<std::string> MemoryTokens(double bytes) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  return {fmt::format("{:.0f}gb", bytes / 1e9), fmt::format("{:.0f}gb", bytes / kGib)};
}

bool HasToken(const std::vector<std::string>& tokens, const std::string& wanted) {
  return std::any_of(tokens.begin(), tokens.end(), [&](const std::string& token) {
    return SameToken(token, wanted) || SameToken(wanted, token);
  });
}

// How well a name that somebody gave fits one that is known. A card's size and socket may be left
// out; "Ti", "Super" and "Laptop" may not, as each is another card.
enum class Fit : uint8_t { kNone, kPartOf, kButDetails, kWhole };
Fit FitOf(const std::vector<std::string>& given, const std::vector<std::string>& known) {
  for (const std::string& token : given) {
    if (!HasToken(known, token)) return Fit::kNone;
  }
  Fit fit = given.empty() ? Fit::kNone : Fit::kWhole;
  for (const std::string& token : known) {
    if (HasToken(given, token)) continue;
    const bool detail =
        token.ends_with("gb") || token.starts_with("sxm") || token == "pcie" || token == "nvl";
    fit = std::min(fit, detail ? Fit::kButDetails : Fit::kPartOf);
  }
  return fit;
}

struct FittingNames {
  bool cards = false;  // or machines of several
  Fit fit = Fit::kNone;
  std::vector<std::string> names;

  void Add(Fit found, const std::string& name) {
    if (found == Fit::kNone || found < fit) return;
    if (found > fit) names.clear();
    fit = found;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
};

// Who names a card means one of it, so machines count where no card fits as well.
FittingNames FindFitting(const std::string& name) {
  const std::vector<std::string> all = Tokens(name);
  FittingNames cards{.cards = true}, machines;
  const std::vector<KnownGpu>& gpus = KnownGpus();
  for (const KnownMachine& machine : KnownMachines()) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const KnownGpu& known) {
      return known.part == machine.name;
    });
    const bool card = gpu != gpus.end();
    Fit fit = FitOf(all, Tokens(machine.name));
    if (card) {
      std::vector<std::string> given = all;
      for (const std::string& size : MemoryTokens(gpu->memory_bytes)) std::erase(given, size);
      fit = std::max(fit, FitOf(given, Tokens(machine.name)));
    }
    (card ? cards : machines).Add(fit, machine.name);
    if (!card) continue;
    for (const std::string& driver_name : gpu->driver_names) {
      if (FitOf(all, Tokens(driver_name)) == Fit::kWhole) cards.Add(Fit::kWhole, machine.name);
    }
  }
  return cards.fit >= machines.fit ? cards : machines;
}

// "h100-80gb-sxm (1 x NVIDIA H100 SXM, 80 GB at 3.35 TB/s)"
std::string WithWhatDiffers(const std::string& name) {
  const HardwareProfile profile = LoadProfile(name);
  const Figure& memory = profile.gpu.memory;
  const Figure& bandwidth = profile.gpu.hbm_bandwidth;
  return fmt::format("{} ({:.0f} x {}, {:g} {} at {:g} {})", name, profile.node.gpus.value,
                     profile.gpu.name, memory.written, memory.unit, bandwidth.written,
                     bandwidth.unit);
}

// A slip of the keys ("h100-80gb-smx"), and no other card: its numbers are those that were given.
std::string Misspelt(const std::string& name, const std::vector<std::string>& known) {
  const std::string lower = LowerAscii(name);
  const std::string nearest = NearestName(lower, known);
  const auto digits = [](std::string text) {
    std::erase_if(text, [](char c) { return !IsDigit(c); });
    return text;
  };
  const bool longer = nearest.starts_with(lower) || lower.starts_with(nearest);
  const bool same = digits(nearest) == digits(lower) && nearest.substr(0, 1) == lower.substr(0, 1);
  return same && !longer ? nearest : "";
}

// Cards of one name: the one that most have, before the others that it may be.
constexpr std::string_view kUsual[] = {"h100-80gb-sxm",  "a100-80gb-sxm",  "a100-40gb-sxm",
                                       "a100-80gb-pcie", "v100-16gb-sxm2", "v100-32gb-sxm2",
                                       "rtx3080-10gb",   "gh200-96gb"};

std::string Usual(const std::vector<std::string>& names) {
  for (const std::string_view usual : kUsual) {
    if (std::find(names.begin(), names.end(), usual) != names.end()) return std::string(usual);
  }
  return "";
}

// Of a name that is another maker's.
void RefuseOtherMakers(std::string_view option, const std::string& name) {
  struct Maker {
    std::string_view word, maker;
  };
  constexpr Maker kMakers[] = {{"mi", "AMD"},       {"amd", "AMD"},      {"radeon", "AMD"},
                               {"instinct", "AMD"}, {"rx", "AMD"},       {"intel", "Intel"},
                               {"arc", "Intel"},    {"gaudi", "Intel"},  {"tpu", "Google"},
                               {"trn", "AWS"},      {"trainium", "AWS"}, {"m", "Apple"},
                               {"apple", "Apple"},  {"mac", "Apple"},    {"macbook", "Apple"}};
  std::string letters;  // of the first word
  for (const char c : name) {
    if (!IsLetter(c)) break;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Maker& maker : kMakers) {
    if (letters != maker.word) continue;
    ThrowUsage(
        "{}: \"{}\" is {}'s; zeroplan plans for NVIDIA GPUs alone ('zeroplan hw list' names them)",
        option, name, maker.maker);
  }
  const std::vector<std::string> tokens = Tokens(name);
  if (HasToken(tokens, "spark") || HasToken(tokens, "gb10")) {
    ThrowUsage(
        "{}: \"{}\": GPU and CPU of a DGX Spark (GB10) share one memory of 128 GB, and plans count "
        "two; a profile of your own (docs/adding-a-hardware-profile.md) with what the system "
        "leaves "
        "of it as the GPU's, and ⟦offload_optimizer⟧ none ⟦offload_param⟧ none, plans it",
        option, name);
  }
}

struct Meant {
  std::string name, note;
};

// The built-in profile that `name` means. Throws Error(kUsage) where that is none, or one of
// several.
Meant MeantProfile(std::string_view option, const std::string& name,
                   const std::vector<std::string>& known) {
  constexpr size_t kMostWithDetails = 6;
  FittingNames found = FindFitting(name);
  if (found.fit >= Fit::kButDetails && found.names.size() == 1) return {found.names.front(), ""};
  if (std::string usual = found.fit >= Fit::kButDetails ? Usual(found.names) : ""; !usual.empty()) {
    std::erase(found.names, usual);
    std::string note = fmt::format("\"{}\" is taken as {}; {} {} {}.", name, WithWhatDiffers(usual),
                                   option, fmt::join(found.names, " or "),
                                   found.names.size() > 1 ? "name others" : "names another");
    return {std::move(usual), std::move(note)};
  }
  RefuseOtherMakers(option, name);
  if (found.names.size() > 1) {
    const size_t count = found.names.size();
    if (count <= kMostWithDetails) {
      for (std::string& match : found.names) match = WithWhatDiffers(match);
    }
    ThrowUsage("{}: \"{}\" is {} of the built-in hardware profiles; use one of {}", option, name,
               count, fmt::join(found.names, ", "));
  }
  // "rtx2080ti" is another card than "rtx2080"; "a3-highgpu" can only be short for "a3-highgpu-8g".
  const bool other = found.cards && !found.names.empty();
  const std::string hint = found.names.empty() ? Misspelt(name, known) : found.names.front();
  ThrowUsage(
      "{}: \"{}\" is no built-in hardware profile{}; use a name of 'zeroplan hw list' or the path "
      "of "
      "a .json file",
      option, name,
      hint.empty() && !name.empty() && Tokens(name).empty()
          ? " (a name of several words stands in quotes, as \"RTX 4090\")"
      : hint.empty() ? ""
      : other        ? fmt::format(" ({} is another card)", hint)
                     : fmt::format(" (did you mean {}?)", hint));
}

// "8xh100", "2 x RTX 4090", "a100 x4": how many of which card; nullopt where no count is said.
struct Counted {
  int count;
  std::string card;
};
std::optional<Counted> TakeCount(const std::string& name) {
  const auto trimmed = [](std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '-')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '-')) text.remove_suffix(1);
    return std::string(text);
  };
  const auto is_times = [](char c) { return c == 'x' || c == 'X' || c == '*'; };
  const auto count_of = [](std::string_view digits) { return std::stoi(std::string(digits)); };
  const std::string_view text = name;
  constexpr size_t kMostDigits = 5;
  const size_t digits = CountWhile(text, 0, IsDigit);
  size_t at = digits;
  while (at < text.size() && text[at] == ' ') ++at;
  if (digits > 0 && digits <= kMostDigits && at < text.size() && is_times(text[at]) &&
      at + 1 < text.size()) {
    return Counted{count_of(text.substr(0, digits)), trimmed(text.substr(at + 1))};
  }
  size_t begin = text.size();
  while (begin > 0 && IsDigit(text[begin - 1])) --begin;
  const size_t last = text.size() - begin;
  size_t times = begin;
  while (times > 0 && text[times - 1] == ' ') --times;
  if (last == 0 || last > kMostDigits || times < 2 || !is_times(text[times - 1])) {
    return std::nullopt;
  }
  // "sxm4" and "MI300X 8" say no count.
  const char before = text[times - 2];
  if (IsLetter(before)) return std::nullopt;
  return Counted{count_of(text.substr(begin)), trimmed(text.substr(0, times - 1))};
}

bool IsModule(const std::string& card) { return card.starts_with("gh200"); }

// More than two cards stand in no desktop: the host of a workstation for several.
void TakeHost(const NodeProfile& from, NodeProfile& node) {
  if (from.host_memory.value <= node.host_memory.value) return;
  node.host_memory = from.host_memory;
  node.cores = from.cores;
  node.triad_bandwidth = from.triad_bandwidth;
  node.adam_bandwidth = from.adam_bandwidth;
  node.nvme_read = from.nvme_read;
  node.nvme_write = from.nvme_write;
  node.nvme_capacity = from.nvme_capacity;
  node.nvme_drives = from.nvme_drives;
}

// The machine that most take for `count` of a card: one of as many; some of a larger one; several
// of the largest one that has a network; else all in one generic host.
NamedProfile SeveralOf(const std::string& card, int count) {
  NamedProfile named;
  if (const std::string machine = MachineOf(card, count); !machine.empty()) {
    named.profile = LoadProfile(machine);
    named.note = fmt::format("{} x {}, as in {}.", count, card, machine);
    return named;
  }
  int larger_gpus = 0, smaller_gpus = 0;
  for (const KnownMachine& machine : KnownMachines()) {
    const int gpus = static_cast<int>(std::lround(machine.gpus));
    if (machine.gpu_part != card || gpus < 2) continue;
    if (gpus > count && (larger_gpus == 0 || gpus < larger_gpus)) larger_gpus = gpus;
    if (gpus < count && count % gpus == 0) smaller_gpus = std::max(smaller_gpus, gpus);
  }
  constexpr int kMostInHost = 8;
  const auto is_tray = [&] {
    const HardwareProfile tray = LoadProfile(MachineOf(card, smaller_gpus));
    return tray.network && tray.network->most_nodes;
  };
  const bool several = smaller_gpus > 0 && (count > kMostInHost || is_tray());
  const int of = larger_gpus > 0 ? larger_gpus : several ? smaller_gpus : 0;
  if (of > 0) {
    const std::string machine = MachineOf(card, of);
    named.profile = LoadProfile(machine);
    named.note = of > count ? fmt::format("{} of the {} x {} of {}.", count, of, card, machine)
                            : fmt::format("{} x {}, in {} machines as {}.", count, card, count / of,
                                          machine);
    return named;
  }
  named.profile = LoadProfile(card);
  if (count > kMostInHost || IsModule(card)) return named;  // nodes of one: the cluster's to refuse
  Figure& gpus = named.profile.node.gpus;
  gpus.value = gpus.written = count;
  gpus.reference = "as many as were asked for, in one host";
  if (count > 2) TakeHost(LoadProfile("4x-rtx3090").node, named.profile.node);
  named.profile.name = fmt::format("{}x-{}", count, card);
  named.profile.description = fmt::format("{} x {} in one generic host", count, card);
  named.note = fmt::format(
      "{} x {} in one generic host, which no built-in profile has: "
      "its links are assumed.",
      count, card);
  return named;
}

// "rtx4090+rtx3090", "2xA100-40GB + 2xA100-80GB": one host with all of them.
NamedProfile UnequalNamed(std::string_view option, const std::string& name,
                          const std::vector<std::string>& known) {
  constexpr int kMostInHost = 8;
  NamedProfile named;
  GpuCounts parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('+', begin), name.size());
    const std::string piece(WithoutBlanks(std::string_view(name).substr(begin, end - begin)));
    begin = end + 1;
    if (piece.empty()) {
      ThrowUsage("{}: {} has an empty name; use such as 4090+3090", option, name);
    }
    const Counted counted = TakeCount(piece).value_or(Counted{1, piece});
    const Meant card = MeantProfile(option, counted.card, known);
    if (!IsCard(card.name) || counted.count < 1) {
      ThrowUsage("{}: \"{}\" is no number of cards, which + adds up; use such as 4090+3090", option,
                 piece);
    }
    if (!card.note.empty()) named.note += (named.note.empty() ? "" : " ") + card.note;
    AddTo(parts, card.name, counted.count);
    named.gpus += counted.count;
  }
  if (named.gpus > kMostInHost) {
    ThrowUsage("{}: {} are more cards than the {} that one host has", option, name, kMostInHost);
  }
  if (parts.size() == 1) {
    const int count = named.gpus;
    named = SeveralOf(parts.front().first, count);
    named.gpus = count;
  } else {
    named.profile = UnequalProfile(parts);
  }
  return named;
}

}  // namespace

std::string MeantName(std::string_view option, const std::string& name,
                      const std::vector<std::string>& known) {
  return MeantProfile(option, name, known).name;
}

NamedProfile FindProfile(const std::string& name_or_file, int gpus, std::string_view option) {
  constexpr std::string_view kBegin = "Hardware: ";
  const std::vector<std::string> names = ProfileNames();
  NamedProfile named;
  Meant meant = {name_or_file, ""};
  int count = 0;
  if (std::find(names.begin(), names.end(), name_or_file) == names.end()) {
    if (name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".json")) {
      named.profile = LoadProfile(name_or_file, option);
      return named;
    }
    if (name_or_file.find('+') != std::string::npos) {
      named = UnequalNamed(option, name_or_file, names);
      if (!named.note.empty()) named.note.insert(0, kBegin);
      return named;
    }
    if (const std::optional<Counted> counted = TakeCount(name_or_file);
        counted && counted->count > 0) {
      const Meant card = MeantProfile(option, counted->card, names);
      if (IsCard(card.name)) {
        count = counted->count;
        meant = card;
      }
    }
    if (count == 0) meant = MeantProfile(option, name_or_file, names);
  }
  if (count > 1) {
    named = SeveralOf(meant.name, count);
  } else if (count == 0 && gpus > 1 && IsCard(meant.name)) {
    named = SeveralOf(meant.name, gpus);
  } else {
    named.profile = LoadProfile(meant.name);
  }
  if (count > 0) named.gpus = count;
  std::string text;
  for (const std::string& note : {meant.note, named.note}) {
    if (note.empty()) continue;
    text += text.empty() ? kBegin : " ";
    text += note;
  }
  named.note = std::move(text);
  return named;
}

HardwareProfile UnequalProfile(const GpuCounts& parts) {
  ZEROPLAN_CHECK(parts.size() > 1);
  int total = 0;
  std::vector<std::string> names, texts;
  for (const auto& [part, count] : parts) {
    total += count;
    names.push_back(count == 1 ? part : fmt::format("{}x-{}", count, part));
    texts.push_back(fmt::format("{} x {}", count, part));
  }
  std::optional<HardwareProfile> host;
  for (const auto& [part, count] : parts) {
    HardwareProfile of_part = SeveralOf(part, total).profile;
    if (!host || of_part.node.gpu_link.value < host->node.gpu_link.value) host = std::move(of_part);
  }
  HardwareProfile profile = *std::move(host);
  const std::string host_name = profile.name;
  Figure& gpus = profile.node.gpus;
  gpus = {static_cast<double>(total), static_cast<double>(total), "count", FigureSource::kDerived,
          "as many as were named, in one host"};
  for (const auto& [part, count] : parts) {
    Figure of_kind = gpus;
    of_kind.value = of_kind.written = count;
    profile.kinds.push_back({LoadProfile(part).gpu, std::move(of_kind)});
  }
  profile.name = fmt::format("{}", fmt::join(names, "+"));
  profile.description = fmt::format("{} in one host, as {} is", fmt::join(texts, ", "), host_name);
  profile.network.reset();
  TakeSlowest(profile);
  return profile;
}

}  // namespace zeroplan
