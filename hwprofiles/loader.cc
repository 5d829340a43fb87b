#include "hwprofiles/loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "hwprofiles/fields.h"
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {

bool LooksLikePath(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

std::string ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    ThrowUsage(
        "⟦hw⟧: cannot read \"{}\"; give a built-in name (see 'zeroplan hw list') or a readable "
        ".json "
        "file",
        path);
  }
  return ReadTextFile(path);
}

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
  const std::vector<std::string> given = Tokens(name);
  FittingNames cards{.cards = true}, machines;
  const std::vector<KnownGpu> gpus = KnownGpus();
  for (const KnownMachine& machine : KnownMachines()) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const KnownGpu& known) {
      return known.part == machine.name;
    });
    const bool card = gpu != gpus.end();
    (card ? cards : machines).Add(FitOf(given, Tokens(machine.name)), machine.name);
    if (!card) continue;
    for (const std::string& driver_name : gpu->driver_names) {
      if (FitOf(given, Tokens(driver_name)) == Fit::kWhole) cards.Add(Fit::kWhole, machine.name);
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
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string nearest = NearestName(lower, known);
  const auto digits = [](std::string text) {
    std::erase_if(text, [](char c) { return !IsDigit(c); });
    return text;
  };
  const bool longer = nearest.starts_with(lower) || lower.starts_with(nearest);
  const bool same = digits(nearest) == digits(lower) && nearest.substr(0, 1) == lower.substr(0, 1);
  return same && !longer ? nearest : "";
}

// The built-in profile that `name` means. Throws Error(kUsage) where that is none, or one of
// several.
std::string MeantProfile(std::string_view option, const std::string& name,
                         const std::vector<std::string>& known) {
  constexpr size_t kMostWithDetails = 6;
  FittingNames found = FindFitting(name);
  if (found.fit >= Fit::kButDetails && found.names.size() == 1) return found.names.front();
  if (found.names.size() > 1) {
    const size_t count = found.names.size();
    if (count <= kMostWithDetails) {
      for (std::string& match : found.names) match = WithWhatDiffers(match);
    }
    ThrowUsage("{}: \"{}\" is {} of the built-in hardware profiles; use one of {}", option, name,
               count, fmt::join(found.names, ", "));
  }
  // "rtx2080ti" is another card than "rtx2080"; "a3-highgpu" can only be short for "a3-highgpu-8g".
  const std::string hint = found.names.empty() ? Misspelt(name, known)
                           : found.cards       ? ""
                                               : found.names.front();
  ThrowUsage(
      "{}: \"{}\" is no built-in hardware profile{}; use a name of 'zeroplan hw list' or the path "
      "of "
      "a .json file",
      option, name, hint.empty() ? "" : fmt::format(" (did you mean {}?)", hint));
}

}  // namespace

std::vector<std::string> NetworkNames() { return EmbeddedNames("networks"); }

std::vector<std::string> ProfileNames() { return EmbeddedNames("profiles"); }

HardwareProfile LoadProfile(const std::string& name_or_file) {
  const std::string_view text = EmbeddedText("profiles", name_or_file);
  if (!text.empty()) return ParseProfile(text, "built in");
  if (!LooksLikePath(name_or_file)) {
    return LoadProfile(MeantProfile("⟦hw⟧", name_or_file, ProfileNames()));
  }
  return ParseProfile(ReadFile(name_or_file), name_or_file);
}

std::string ProfileText(const std::string& name_or_file) {
  std::string_view text = EmbeddedText("profiles", name_or_file);
  if (text.empty()) {
    for (const PartKind& kind : PartKinds()) {
      if (EmbeddedText(kind.folder, name_or_file).empty()) continue;
      return PartText(kind, name_or_file);
    }
    if (!LooksLikePath(name_or_file)) {
      std::vector<std::string> names = ProfileNames();
      for (const PartKind& kind : PartKinds()) {
        for (std::string& name : EmbeddedNames(kind.folder)) names.push_back(std::move(name));
      }
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      return ProfileText(MeantProfile("hw show", name_or_file, names));
    }
    const std::string file = ReadFile(name_or_file);
    ParseProfile(file, name_or_file);  // throws if it is none
    return ComposedText(file, name_or_file);
  }
  return ComposedText(text, name_or_file);
}

namespace {

constexpr std::string_view kNetworkOption = "⟦network⟧";
constexpr std::string_view kLinkOption = "⟦intra_node_bandwidth⟧";
constexpr std::string_view kDrivesOption = "⟦nvme_drives⟧";

// The count before "x" in "8x400Gb", which is cut off; 1 where there is none.
int TakeCount(std::string_view& rate) {
  size_t digits = 0;
  while (digits < rate.size() && std::isdigit(static_cast<unsigned char>(rate[digits]))) ++digits;
  if (digits == 0 || digits > 3 || digits + 1 >= rate.size() || rate[digits] != 'x') return 1;
  const int count = std::stoi(std::string(rate.substr(0, digits)));
  if (count == 0) return 1;  // the rate that follows is then refused with its "0x"
  rate.remove_prefix(digits + 1);
  return count;
}

Figure FromCommandLine(double bytes_per_second, std::string_view option, const std::string& text) {
  Figure figure;
  figure.value = bytes_per_second;
  figure.written = bytes_per_second / 1e9;
  figure.unit = "GB/s";
  figure.source = FigureSource::kDerived;
  figure.reference = fmt::format("{} {}", option, text);
  return figure;
}

void CheckRange(double value, const FigureRule& rule, std::string_view option,
                const std::string& text) {
  if (value >= rule.low && value <= rule.high) return;
  const bool bare = text.find_first_not_of("0123456789.") == std::string::npos;
  ThrowUsage("{}: {} {}is not physical; use {:g} to {:g} GB/s (1 GB/s is 8 Gb/s), with its unit{}",
             option, text, bare ? "without a unit is bytes a second, which " : "", rule.low / 1e9,
             rule.high / 1e9, bare ? fmt::format(", such as {}Gb", text) : "");
}

}  // namespace

void ApplyNetwork(HardwareProfile& profile, const std::string& text) {
  const std::vector<std::string> names = NetworkNames();
  for (const std::string& name : names) {
    if (name != text) continue;
    profile.network = LoadNetwork(name);
    return;
  }
  const bool starts_as_rate = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0]));
  if (!starts_as_rate) {
    const std::string nearest = NearestName(text, names);
    ThrowUsage("{}: \"{}\" is no built-in network{}; use {}, or a rate such as 25Gb or 8x400Gb",
               kNetworkOption, text,
               nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
               fmt::join(names, ", "));
  }
  std::string_view rate = text;
  const int adapters = TakeCount(rate);
  const double bandwidth = adapters * ParseBandwidth(rate, kNetworkOption);
  CheckRange(bandwidth, figure_rules::kNetworkBandwidth, kNetworkOption, text);
  NetworkProfile network;
  network.name = text;
  network.bandwidth_per_node = FromCommandLine(bandwidth, kNetworkOption, text);
  network.latency = profile.network ? profile.network->latency : LoadNetwork("eth-10").latency;
  profile.network = std::move(network);
}

void ApplyGpuLink(HardwareProfile& profile, const std::string& text) {
  const double bandwidth = ParseBandwidth(text, kLinkOption);
  CheckRange(bandwidth, figure_rules::kLink, kLinkOption, text);
  profile.node.gpu_link = FromCommandLine(bandwidth, kLinkOption, text);
  profile.node.collectives.reset();
  profile.node.nccl_environment.reset();
}

void ApplyNvmeDrives(HardwareProfile& profile, uint64_t drives) {
  NodeProfile& node = profile.node;
  if (!node.nvme_read || !node.nvme_write) {
    ThrowUsage(
        "{}: {} has no effect: the hardware profile {} has no rates of a disk; add host.nvme_read "
        "and host.nvme_write to a profile of your own, or leave it out",
        kDrivesOption, drives, profile.name);
  }
  const double of_profile = node.nvme_drives ? node.nvme_drives->value : 1;
  const auto wanted = static_cast<double>(drives);
  const std::string known =
      node.nvme_drives ? fmt::format("{:.0f} drive{}", of_profile, of_profile == 1 ? "" : "s")
                       : "1 drive, as the profile does not say of how many";
  const std::string reference =
      fmt::format("{} {}: as many like those of the hardware profile, whose figures are of {}",
                  kDrivesOption, drives, known);
  const double factor = wanted / of_profile;
  const auto scale = [&](std::optional<Figure>& figure, const FigureRule& rule) {
    if (!figure || factor == 1) return;
    if (figure->value * factor > rule.high) {
      ThrowUsage("{}: {} drives would be {:.3g} {}, more than any node has; use {:.0f} or less",
                 kDrivesOption, drives, figure->written * factor, figure->unit,
                 std::max(1.0, std::floor(of_profile * rule.high / figure->value)));
    }
    figure->value *= factor;
    figure->written *= factor;
    figure->source = FigureSource::kDerived;
    figure->reference = reference;
  };
  scale(node.nvme_read, figure_rules::kDisk);
  scale(node.nvme_write, figure_rules::kDisk);
  scale(node.nvme_capacity, figure_rules::kDiskCapacity);
  node.nvme_drives = Figure{wanted, wanted, "count", FigureSource::kDerived, reference};
}

}  // namespace zeroplan
