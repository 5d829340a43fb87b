#include "text/files/table_reader.h"

#include "core/base/error.h"

#ifdef ZEROPLAN_WITH_ARROW
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>
#endif

namespace zeroplan {

#ifdef ZEROPLAN_WITH_ARROW

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kWanted = {
    "text", "prompt", "completion", "messages", "tools", "documents", "chat_template_kwargs"};
constexpr int64_t kRowsAtATime = 1024;

Json ValueAt(const arrow::Array& array, int64_t row);

template <typename List>
Json ListAt(const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const List&>(array);
  Json out = Json::array();
  for (int64_t i = 0; i < list.value_length(row); ++i) {
    out.push_back(ValueAt(*list.values(), list.value_offset(row) + i));
  }
  return out;
}

Json ValueAt(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(row);
    case arrow::Type::STRING:
      return static_cast<const arrow::StringArray&>(array).GetString(row);
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).GetString(row);
    case arrow::Type::INT32:
      return static_cast<const arrow::Int32Array&>(array).Value(row);
    case arrow::Type::INT64:
      return static_cast<const arrow::Int64Array&>(array).Value(row);
    case arrow::Type::DOUBLE:
      return static_cast<const arrow::DoubleArray&>(array).Value(row);
    case arrow::Type::LIST:
      return ListAt<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST:
      return ListAt<arrow::LargeListArray>(array, row);
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(array);
      return ValueAt(*words.dictionary(), words.GetValueIndex(row));
    }
    case arrow::Type::STRUCT: {
      const auto& members = static_cast<const arrow::StructArray&>(array);
      Json out = Json::object();
      for (int i = 0; i < members.num_fields(); ++i) {
        out[members.type()->field(i)->name()] = ValueAt(*members.field(i), row);
      }
      return out;
    }
    default:  // refused where it is asked for
      return Json{{"a column of type", array.type()->ToString()}};
  }
}

class ParquetReader : public TableReader {
 public:
  ParquetReader(const std::filesystem::path& path, std::string_view text_field) : path_(path) {
    Check(arrow::io::ReadableFile::Open(path.string()), &file_);
    Check(parquet::arrow::OpenFile(file_, arrow::default_memory_pool()), &reader_);
    reader_->set_batch_size(kRowsAtATime);
    std::shared_ptr<arrow::Schema> schema;
    Check(reader_->GetSchema(&schema));
    std::vector<int> columns;
    int leaf = 0;
    for (const auto& field : schema->fields()) {
      const int leaves = Leaves(*field->type());
      const bool wanted = field->name() == text_field ||
                          std::find(kWanted.begin(), kWanted.end(), field->name()) != kWanted.end();
      for (int i = 0; wanted && i < leaves; ++i) columns.push_back(leaf + i);
      if (!wanted) others_.push_back(field->name());
      leaf += leaves;
    }
    std::vector<int> groups(static_cast<size_t>(reader_->num_row_groups()));
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
    Check(reader_->GetRecordBatchReader(groups, columns), &batches_);
  }

  bool Next(std::string* line) override {
    while (batch_ == nullptr || row_ == batch_->num_rows()) {
      row_ = 0;
      Check(batches_->ReadNext(&batch_));
      if (batch_ == nullptr) return false;
    }
    ++number_;
    Json record = Json::object();
    for (int i = 0; i < batch_->num_columns(); ++i) {
      record[batch_->column_name(i)] = ValueAt(*batch_->column(i), row_);
    }
    for (const std::string& name : others_) record[name] = nullptr;
    ++row_;
    try {
      *line = record.dump();
    } catch (const Json::exception&) {
      ThrowUsage("{}: row {}: has a text that is no UTF-8", path_.string(), number_);
    }
    return true;
  }
  int64_t number() const override { return number_; }

 private:
  void Check(const arrow::Status& status) const {
    if (!status.ok()) {
      ThrowUsage("{}: cannot be read as Parquet: {}", path_.string(), status.ToString());
    }
  }
  template <typename T, typename U>
  void Check(arrow::Result<T> result, U* value) const {
    Check(result.status());
    *value = std::move(result).ValueUnsafe();
  }

  static int Leaves(const arrow::DataType& type) {
    if (type.num_fields() == 0) return 1;
    int leaves = 0;
    for (const auto& field : type.fields()) leaves += Leaves(*field->type());
    return leaves;
  }

  std::filesystem::path path_;
  std::shared_ptr<arrow::io::ReadableFile> file_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<std::string> others_;
  int64_t row_ = 0;
  int64_t number_ = 0;
};

}  // namespace

std::unique_ptr<TableReader> TableReader::Open(const std::filesystem::path& path,
                                               std::string_view text_field) {
  return std::make_unique<ParquetReader>(path, text_field);
}

#else

std::unique_ptr<TableReader> TableReader::Open(const std::filesystem::path& path,
                                               std::string_view /*text_field*/) {
  ThrowUsage(
      "{}: Parquet needs Arrow, which this build was made without: install it (libarrow-dev and "
      "libparquet-dev of apache.org) and build again, or write the table as lines of JSON, as "
      "Python's pandas.read_parquet(FILE).to_json(NEW, orient=\"records\", lines=True) does",
      path.string());
}

#endif

}  // namespace zeroplan
