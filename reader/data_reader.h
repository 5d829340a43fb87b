// Training data, read for a question as train reads it: what the command line and the libraries
// give DataFields::read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "planner/request/request.h"
#include "text/documents/tokenize_files.h"

namespace zeroplan {

// What the fields say of records and texts. Throws Error(kUsage) naming the field that is wrong.
TextChoices ChoicesOf(const RecordFields& fields);

// A DataReader. Makes tokens of what is none, and keeps them in the cache folder as train does
// (text/documents/token_cache.h). Stops with Error(kInterrupted) where ThrowIfInterrupted does.
// `says`: DataRequest's.
std::shared_ptr<const DataCount> CountData(const DataFields& fields, const std::string& folder,
                                           int64_t vocab, bool says);

}  // namespace zeroplan
