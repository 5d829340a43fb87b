// Parquet and Arrow files, which Python reads: each input starts a process. Where Python has no
// pyarrow nothing is read. Reading throws Error or gives rows that are JSON objects of bounded
// size.
#include <string>

#include "core/base/limits.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"
#include "text/documents/document_source.h"
#include "text/files/record_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zeroplan;
  static const ScratchFiles files;
  if (size == 0) return 0;
  const auto path = files.Write(data[0] % 2 == 0 ? "in.parquet" : "in.arrow",
                                {reinterpret_cast<const char*>(data) + 1, size - 1});
  Accepts([&] {
    DocumentSource source({path}, RecordNames());
    for (RawDocument document; source.Next(&document);) {
      Need(!document.where.empty() && document.bytes.size() <= kMostRecordBytes);
    }
  });
  return 0;
}
