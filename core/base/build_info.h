// The sources and tools of this build, as constants.
#pragma once

#include <string_view>

namespace zeroplan {

// Texts are empty if unknown or absent.
struct BuildInfo {
  std::string_view commit;             // its first 12 digits
  std::string_view date;               // the commit's day, "2026-11-23"
  bool changed;                        // the sources had uncommitted changes
  std::string_view compiler;           // "GNU 12.2.0, Release"
  bool executor;                       // this build includes zeroplan-executor
  std::string_view cuda, nccl, cudnn;  // versions of the headers
  std::string_view architectures;      // "80-real 90-real"
  std::string_view cuda_status;        // "on", or the reason why there is none
};

// Defined in a file that the build writes (packaging/build_info.cmake).
const BuildInfo& GetBuildInfo();

}  // namespace zeroplan
