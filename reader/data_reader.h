// Reads training data for a question in the way of train: the function that the command line and
// the libraries pass as DataFields::read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "planner/request/request.h"
#include "text/documents/tokenize_files.h"
#include "text/files/token_dataset.h"

namespace zeroplan {

// The choices for records and texts in the fields. Throws Error(kUsage) naming the field that is
// wrong.
TextChoices ChoicesOf(const RecordFields& fields);

// A DataReader. Tokenizes data that are not tokens yet, and keeps the tokens in the cache folder as
// train does (text/documents/token_cache.h). Stops with Error(kInterrupted) if ThrowIfInterrupted
// does. `says`: as in DataRequest.
std::shared_ptr<const DataCount> CountData(const DataFields& fields, const std::string& folder,
                                           int64_t vocab, bool says);

// The same of tokens that are there. `truncate`: as DataFields has it.
std::shared_ptr<const DataCount> CountOf(TokenDataset data, bool truncate);

}  // namespace zeroplan
