#include "hwprofiles/tables.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <tuple>

#include "core/base/error.h"

namespace zeroplan {
namespace {

template <typename Value>
using Word = std::pair<std::string_view, Value>;
constexpr Word<GemmKind> kGemmKinds[] = {
    {"forward", GemmKind::kForward}, {"data", GemmKind::kData}, {"weight", GemmKind::kWeight}};
constexpr Word<Dtype> kDtypes[] = {
    {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}, {"fp32", Dtype::kF32}};
constexpr Word<CollectiveOp> kOps[] = {{"all_reduce", CollectiveOp::kAllReduce},
                                       {"all_gather", CollectiveOp::kAllGather},
                                       {"reduce_scatter", CollectiveOp::kReduceScatter}};

template <typename Value, size_t N>
std::string_view WordOf(const Word<Value> (&words)[N], Value wanted) {
  const auto found = std::find_if(std::begin(words), std::end(words),
                                  [&](const Word<Value>& word) { return word.second == wanted; });
  ZEROPLAN_CHECK(found != std::end(words), "a value without a word");
  return found->first;
}

// One row, read from left to right.
class Row {
 public:
  Row(const FigureReader& reader, std::string path, const ProfileJson& cells,
      std::span<const std::string_view> columns, double scale)
      : reader_(reader), path_(std::move(path)), cells_(cells), columns_(columns), scale_(scale) {
    if (!cells.is_array() || cells.size() != columns.size()) {
      reader.Fail(path_, fmt::format("{} is not a row; give {} values: {}", cells.dump(),
                                     columns.size(), fmt::join(columns, ", ")));
    }
  }

  template <typename Value, size_t N>
  Value Take(const Word<Value> (&words)[N]) {
    const ProfileJson& cell = cells_[column_];
    std::string allowed;
    for (const auto& [word, value] : words) {
      if (cell.is_string() && cell.get_ref<const std::string&>() == word) {
        ++column_;
        return value;
      }
      allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", word);
    }
    FailCell("use one of " + allowed);
  }
  int64_t TakeWhole() {
    constexpr int64_t kMost = 1'000'000'000;
    const ProfileJson& cell = cells_[column_];
    if (!cell.is_number_integer() || cell.get<int64_t>() < 1 || cell.get<int64_t>() > kMost) {
      FailCell(fmt::format("use a whole number from 1 to {}", kMost));
    }
    ++column_;
    return cell.get<int64_t>();
  }
  // Bytes, rates and times past these are no measurements, and overflow what is made of them.
  double TakeNumber() {
    constexpr double kLeast = 1e-9, kMost = 1e18;
    const ProfileJson& cell = cells_[column_];
    if (!cell.is_number() || !(cell.get<double>() >= kLeast && cell.get<double>() <= kMost)) {
      FailCell(fmt::format("use a number from {:g} to {:g}", kLeast, kMost));
    }
    ++column_;
    return cell.get<double>();
  }
  // What was measured, in the base unit.
  double TakeMeasured() { return TakeNumber() * scale_; }

 private:
  [[noreturn]] void FailCell(const std::string& fix) const {
    reader_.Fail(path_, fmt::format("{}: {} is not allowed; {}", columns_[column_],
                                    cells_[column_].dump(), fix));
  }

  const FigureReader& reader_;
  std::string path_;
  const ProfileJson& cells_;
  std::span<const std::string_view> columns_;
  double scale_;
  size_t column_ = 0;
};

// `key` tells what a row is about: no two rows may be about the same.
template <typename Result, typename ReadRow, typename Key>
std::optional<Measured<Result>> ReadTable(FigureReader& reader, const std::string& path,
                                          Dimension dimension,
                                          std::span<const std::string_view> columns,
                                          ReadRow read_row, Key key) {
  if (!reader.Has(path)) return std::nullopt;
  const TableText text = reader.Table(path, dimension, columns);
  Measured<Result> table;
  table.source = text.source;
  table.reference = text.reference;
  using KeyType = decltype(key(std::declval<Result>()));
  std::vector<std::pair<KeyType, size_t>> keys;
  for (size_t i = 0; i < text.rows->size(); ++i) {
    Row row(reader, fmt::format("{}.rows.{}", path, i), (*text.rows)[i], columns, text.scale);
    table.rows.push_back(read_row(row));
    keys.emplace_back(key(table.rows.back()), i);
  }
  std::sort(keys.begin(), keys.end());
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i].first == keys[i - 1].first) {
      reader.Fail(
          fmt::format("{}.rows.{}", path, keys[i].second),
          fmt::format("says again what row {} is about; keep one of them", keys[i - 1].second));
    }
  }
  return table;
}

}  // namespace

std::string_view GemmKindWord(GemmKind kind) { return WordOf(kGemmKinds, kind); }
std::string_view CollectiveOpWord(CollectiveOp op) { return WordOf(kOps, op); }

std::optional<Measured<GemmRate>> ReadGemmTable(FigureReader& reader, const std::string& path) {
  static constexpr std::string_view kColumns[] = {"kind", "dtype", "m", "k", "n", "rate"};
  return ReadTable<GemmRate>(
      reader, path, Dimension::kFlopsPerSecond, kColumns,
      [](Row& row) {
        GemmRate rate;
        rate.kind = row.Take(kGemmKinds);
        rate.dtype = row.Take(kDtypes);
        rate.m = row.TakeWhole();
        rate.k = row.TakeWhole();
        rate.n = row.TakeWhole();
        rate.flops_per_second = row.TakeMeasured();
        return rate;
      },
      [](const GemmRate& r) { return std::make_tuple(r.kind, r.dtype, r.m, r.k, r.n); });
}

std::optional<Measured<AttentionRate>> ReadAttentionTable(FigureReader& reader,
                                                          const std::string& path) {
  static constexpr std::string_view kColumns[] = {"batch",    "heads",   "seq",
                                                  "head_dim", "forward", "backward"};
  return ReadTable<AttentionRate>(
      reader, path, Dimension::kFlopsPerSecond, kColumns,
      [](Row& row) {
        AttentionRate rate;
        rate.batch = row.TakeWhole();
        rate.heads = row.TakeWhole();
        rate.seq = row.TakeWhole();
        rate.head_dim = row.TakeWhole();
        rate.forward_flops_per_second = row.TakeMeasured();
        rate.backward_flops_per_second = row.TakeMeasured();
        return rate;
      },
      [](const AttentionRate& r) { return std::make_tuple(r.batch, r.heads, r.seq, r.head_dim); });
}

std::optional<Measured<MemoryKernelTime>> ReadMemoryTable(FigureReader& reader,
                                                          const std::string& path) {
  static constexpr std::string_view kColumns[] = {"bytes", "time"};
  return ReadTable<MemoryKernelTime>(
      reader, path, Dimension::kSeconds, kColumns,
      [](Row& row) {
        MemoryKernelTime time;
        time.bytes = row.TakeNumber();
        time.seconds = row.TakeMeasured();
        return time;
      },
      [](const MemoryKernelTime& t) { return t.bytes; });
}

std::optional<Measured<CopyTime>> ReadCopyTable(FigureReader& reader, const std::string& path) {
  static constexpr std::string_view kColumns[] = {"bytes", "to_device", "from_device"};
  return ReadTable<CopyTime>(
      reader, path, Dimension::kSeconds, kColumns,
      [](Row& row) {
        CopyTime time;
        time.bytes = row.TakeNumber();
        time.to_device_seconds = row.TakeMeasured();
        time.from_device_seconds = row.TakeMeasured();
        return time;
      },
      [](const CopyTime& t) { return t.bytes; });
}

std::optional<Measured<CollectiveTime>> ReadCollectiveTable(FigureReader& reader,
                                                            const std::string& path) {
  static constexpr std::string_view kColumns[] = {"op", "world_size", "bytes", "time"};
  return ReadTable<CollectiveTime>(
      reader, path, Dimension::kSeconds, kColumns,
      [](Row& row) {
        CollectiveTime time;
        time.op = row.Take(kOps);
        time.world_size = static_cast<int>(row.TakeWhole());
        time.bytes = row.TakeNumber();
        time.seconds = row.TakeMeasured();
        return time;
      },
      [](const CollectiveTime& t) { return std::make_tuple(t.op, t.world_size, t.bytes); });
}

}  // namespace zeroplan
