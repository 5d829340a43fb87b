// Rows of Parquet and Arrow files. The Python package pyarrow reads them, which whoever has such
// files has too (`datasets` and `pandas` bring it): no package of Debian or Ubuntu does.
//
// $ZEROPLAN_PYTHON, else python3, is started once a file and hands the rows over a pipe. It runs
// nothing that lies where the data lie: its working folder is /, and neither that nor the folder
// that zeroplan was called in is among those that it imports from or finds programs in.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "text/files/record_reader.h"

namespace zeroplan {

// As RecordReader::Open.
std::unique_ptr<RecordReader> OpenTable(const std::filesystem::path& path,
                                        std::span<const std::string> members);

}  // namespace zeroplan
