#include "core/config/data_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/base/error.h"
#include "core/base/units.h"

namespace zeroplan {
namespace {

constexpr uint64_t kStep = kSeqLenStep;

std::string Several(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// "12.5", "1878".
std::string Number(double value) {
  return value < 1000 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value);
}

std::string LengthsText(const DocumentLengths& lengths) {
  return fmt::format(
      "Tokens of a document: {} to {}, median {}, mean {:.0f}; 95 % have at most {}, 99 % at most "
      "{}.",
      lengths.AtShare(0), lengths.AtShare(1), lengths.AtShare(0.5), lengths.mean(),
      lengths.AtShare(0.95), lengths.AtShare(0.99));
}

// Describes the result of laying the same documents into sequences the other way.
std::string OtherwiseText(const DataFacts& facts) {
  const bool packs = facts.packing == Packing::kDocuments;
  const std::optional<EpochRows>& other = packs ? facts.padded : facts.packed;
  if (!other || other->sequences == facts.epoch.sequences) return "";
  const double ratio = static_cast<double>(other->sequences) /
                       static_cast<double>(std::max<uint64_t>(facts.epoch.sequences, 1));
  return fmt::format("; {} they would be {}, {:.1f} % padding: {} times the steps",
                     packs ? "one a sequence (⟦packing⟧ off)" : "with ⟦packing⟧ documents",
                     Several(other->sequences, "sequence"),
                     100 * other->PaddingShare(facts.seq_len), Number(ratio));
}

// Names the documents and tokens that are not trained on, or are cut.
std::string LossesText(const DataFacts& facts) {
  std::string text;
  if (facts.longer > 0) {
    text += fmt::format("; documents longer than a sequence: {}, ", facts.longer);
    text += facts.left_out > 0 ? fmt::format("whose last {} tokens are left out", facts.left_out)
                               : "cut into pieces that do not see each other";
    if (facts.unheard > 0) {
      text += fmt::format(
          "; of these cut off before anything counts in the loss: {} (a longer ⟦seq_len⟧ keeps "
          "more)",
          facts.unheard);
    }
  }
  if (facts.single > 0) {
    text += fmt::format("; documents of a single token, left out: {}", facts.single);
  }
  return text;
}

std::string RowsText(const DataFacts& facts) {
  if (facts.packing == Packing::kStream) {
    const std::string held =
        facts.held_back == 0
            ? ""
            : fmt::format("; {} more are held back for validation", facts.held_back);
    return fmt::format("As one stream they are {} of {} an epoch, without padding{}.",
                       Several(facts.epoch.sequences, "sequence"), facts.seq_len, held);
  }
  std::string text =
      facts.fixed_rows
          ? fmt::format(
                "⟦packing⟧ {}: {} in {} of {} an epoch, {:.1f} % of "
                "their positions padding{}",
                PackingName(facts.packing), Several(facts.trained_documents, "document"),
                Several(facts.epoch.sequences, "sequence"), facts.seq_len,
                100 * facts.epoch.PaddingShare(facts.seq_len), OtherwiseText(facts))
          : fmt::format("One document a sequence: {} an epoch, of at most {} tokens",
                        Several(facts.epoch.sequences, "sequence"), facts.seq_len);
  if (facts.held_back > 0) {
    text += fmt::format(
        "; {} held back for validation",
        facts.held_back == 1 ? "1 document is" : fmt::format("{} documents are", facts.held_back));
  }
  text += LossesText(facts);
  return text + ".";
}

}  // namespace

DocumentLengths::DocumentLengths(std::vector<std::pair<uint64_t, uint64_t>> of)
    : of_(std::move(of)) {
  for (const auto& [length, count] : of_) {
    documents_ += count;
    tokens_ += length * count;
  }
}

double DocumentLengths::mean() const {
  return documents_ == 0 ? 0 : static_cast<double>(tokens_) / static_cast<double>(documents_);
}

uint64_t DocumentLengths::AtShare(double share) const {
  // Nearest rank: share 0.95 of 100 documents is the 95th.
  const double rank = std::max(1.0, std::ceil(share * static_cast<double>(documents_) - 1e-9));
  uint64_t seen = 0;
  for (const auto& [length, count] : of_) {
    seen += count;
    if (static_cast<double>(seen) >= rank) return length;
  }
  return 0;
}

std::pair<uint64_t, uint64_t> DocumentLengths::Between(uint64_t above, uint64_t to) const {
  std::pair<uint64_t, uint64_t> found;
  for (const auto& [length, count] : of_) {
    if (length <= above || length > to) continue;
    found.first += count;
    found.second += length * count;
  }
  return found;
}

uint64_t DocumentLengths::Longer(uint64_t tokens) const {
  return Between(tokens, std::numeric_limits<uint64_t>::max()).first;
}

uint64_t DocumentLengths::TokensBeyond(uint64_t tokens) const {
  uint64_t beyond = 0;
  for (const auto& [length, count] : of_) beyond += length > tokens ? (length - tokens) * count : 0;
  return beyond;
}

double DocumentLengths::MeanLongestOf(uint64_t count, uint64_t most) const {
  const uint64_t drawn = std::min(count, documents_);
  // The probability that all documents drawn are among the n shortest: C(n, drawn) / C(documents,
  // drawn).
  const auto within = [&](uint64_t n) {
    double chance = 1;
    for (uint64_t i = 0; i < drawn && chance > 0; ++i) {
      chance *= n > i ? static_cast<double>(n - i) / static_cast<double>(documents_ - i) : 0;
    }
    return chance;
  };
  double mean = 0, before = 0;
  uint64_t seen = 0;
  for (const auto& [length, documents] : of_) {
    seen += documents;
    const double chance = within(seen);
    mean += static_cast<double>(std::min(length, most)) * (chance - before);
    before = chance;
  }
  return mean;
}

double DocumentLengths::MeanUpTo(uint64_t most) const {
  return documents_ == 0
             ? 0
             : static_cast<double>(tokens_ - TokensBeyond(most)) / static_cast<double>(documents_);
}

DocumentLengths::Keys DocumentLengths::KeysOf(uint64_t most, bool in_pieces) const {
  Keys sum;
  const auto add = [&](double documents, uint64_t positions) {
    const auto n = static_cast<double>(positions);
    sum.positions += documents * n;
    sum.keys += documents * n * (n + 1) / 2;
  };
  for (const auto& [length, count] : of_) {
    const uint64_t positions = length - 1;
    const auto documents = static_cast<double>(count);
    const uint64_t whole = positions / most, rest = positions % most;
    add(documents * static_cast<double>(in_pieces ? whole : std::min<uint64_t>(whole, 1)), most);
    if (in_pieces || whole == 0) add(documents, rest);
  }
  return sum;
}

double EpochRows::PaddingShare(int64_t seq_len) const {
  const uint64_t positions = sequences * static_cast<uint64_t>(seq_len);
  return positions == 0 ? 0
                        : static_cast<double>(positions - filled) / static_cast<double>(positions);
}

double MeanVisibleKeys(const DataFacts& facts) {
  const auto most = static_cast<uint64_t>(facts.seq_len);
  const bool in_pieces = facts.left_out == 0;
  const DocumentLengths::Keys documents = facts.lengths.KeysOf(most, in_pieces);
  if (documents.positions == 0 || facts.epoch.sequences == 0) return 0;
  const double of_documents = documents.keys / documents.positions;
  const double padding = facts.epoch.PaddingShare(facts.seq_len);
  const uint64_t longest = std::min(most, facts.lengths.AtShare(1) - 1);
  const double of_a_row = padding * static_cast<double>(facts.seq_len);
  const double piece = std::min(of_a_row, static_cast<double>(longest));
  return (1 - padding) * of_documents + padding * (piece + 1) / 2;
}

MicroBatchTokens MicroBatchOf(const DataFacts& facts, int64_t sequences) {
  const auto rows = static_cast<uint64_t>(sequences), most = static_cast<uint64_t>(facts.seq_len);
  const uint64_t planned = rows * most;
  if (facts.fixed_rows || facts.packing == Packing::kStream) {
    return {planned, planned, static_cast<double>(planned),
            facts.epoch.PaddingShare(facts.seq_len)};
  }
  const DocumentLengths& lengths = facts.lengths;
  const double row = lengths.MeanLongestOf(rows, most);
  return {planned, rows * std::min(lengths.AtShare(1), most), static_cast<double>(rows) * row,
          1 - lengths.MeanUpTo(most) / row};
}

double SequencesOfEpochs(double epochs, uint64_t sequences) {
  return std::ceil(epochs * static_cast<double>(sequences) * (1 - 1e-12));
}

uint64_t LongestWhole(bool fixed_rows, int64_t seq_len) {
  // A target is the token after its input, so a document fills one position less than it has
  // tokens. Other programs give each token a position.
  return static_cast<uint64_t>(seq_len) + (fixed_rows ? 1 : 0);
}

SeqLenProposal CutsOf(const DocumentLengths& lengths, bool fixed_rows, int64_t seq_len) {
  const uint64_t tokens = LongestWhole(fixed_rows, seq_len);
  return {
      seq_len,
      static_cast<double>(lengths.Longer(tokens)) / static_cast<double>(lengths.documents()),
      static_cast<double>(lengths.TokensBeyond(tokens)) / static_cast<double>(lengths.tokens())};
}

SeqLenProposal ProposeSeqLen(const DocumentLengths& lengths, bool fixed_rows) {
  ZEROPLAN_CHECK(lengths.documents() > 0, "no documents to propose a length for");
  const uint64_t tokens = lengths.AtShare(1 - kMostCut);
  const uint64_t positions = std::max<uint64_t>(tokens - (fixed_rows ? 1 : 0), 1);
  return CutsOf(lengths, fixed_rows, static_cast<int64_t>(AlignUp(positions, kStep)));
}

std::string DataLine(const DataFacts& facts) {
  const DocumentLengths& lengths = facts.lengths;
  std::string text = Several(lengths.documents(), "document");
  if (lengths.documents() > 1) {
    text += fmt::format(" of {} tokens in the median, {} at most", lengths.AtShare(0.5),
                        lengths.AtShare(1));
  }
  text += fmt::format(", {} tokens", lengths.tokens());
  if (facts.counted) text += fmt::format(", of which {} count in the loss", *facts.counted);
  text += "; ";
  if (facts.packing == Packing::kStream) {
    text += "one stream, ";
  } else {
    text += facts.packing == Packing::kDocuments ? "packed (⟦packing⟧ documents), "
                                                 : "one a sequence (⟦packing⟧ off), ";
  }
  text += facts.fixed_rows ? fmt::format("{} of {} an epoch",
                                         Several(facts.epoch.sequences, "sequence"), facts.seq_len)
                           : fmt::format("{} an epoch, of at most {}",
                                         Several(facts.epoch.sequences, "sequence"), facts.seq_len);
  if (const double padding = facts.epoch.PaddingShare(facts.seq_len);
      facts.fixed_rows && padding > 0) {
    text += fmt::format(", {:.1f} % padding", 100 * padding);
  }
  return text + LossesText(facts) + ".";
}

std::string DataText(const DataFacts& facts) {
  std::string text = fmt::format("{}, {} tokens", Several(facts.lengths.documents(), "document"),
                                 facts.lengths.tokens());
  if (facts.counted) text += fmt::format(", of which {} count in the loss", *facts.counted);
  text += ". ";
  if (facts.lengths.documents() > 1) text += LengthsText(facts.lengths) + ' ';
  return text + RowsText(facts);
}

std::string EpochText(const DataFacts& facts, int64_t global_batch, int64_t steps) {
  const auto sequences = static_cast<double>(facts.epoch.sequences);
  const double an_epoch = sequences / static_cast<double>(global_batch);
  const std::string epochs = Number(static_cast<double>(steps) / an_epoch);
  const std::string in_epoch = Number(an_epoch);
  return fmt::format("An epoch is {}, {} a step: {} step{}. {} step{} {} epoch{}.",
                     Several(facts.epoch.sequences, "sequence"), global_batch, in_epoch,
                     in_epoch == "1" ? "" : "s", steps, steps == 1 ? " is" : "s are", epochs,
                     epochs == "1" ? "" : "s");
}

}  // namespace zeroplan
