// Reads rows of Parquet and Arrow files through the Python package pyarrow, which users of such
// files have (`datasets` and `pandas` bring it); no package of Debian or Ubuntu contains it.
//
// Starts $ZEROPLAN_PYTHON, else python3, once a file, which sends the rows over a pipe. It runs no
// code from the data's folder: its working folder is /, and it neither imports nor finds programs
// there or in the folder in which zeroplan was called.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "text/files/record_reader.h"

namespace zeroplan {

// Same arguments and errors as RecordReader::Open.
std::unique_ptr<RecordReader> OpenTable(const std::filesystem::path& path,
                                        std::span<const std::string> members);

}  // namespace zeroplan
