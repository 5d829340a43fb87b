// What this program was built from and with: facts of the build, so that asking loads nothing.
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

// Texts are empty where something is not known or not there.
struct BuildInfo {
  std::string_view commit;             // 12 digits of it
  std::string_view date;               // its day, "2026-11-23"
  bool changed;                        // the sources had changes besides
  std::string_view compiler;           // "GNU 12.2.0, Release"
  bool native;                         // for CPUs like the one that it was built on
  bool executor;                       // this build has zeroplan-executor
  std::string_view cuda, nccl, cudnn;  // versions of the headers
  std::string_view architectures;      // "80-real 90-real"
  std::string_view cuda_status;        // "on", or why there is none
};

// Defined in a file that the build writes (packaging/build_info.cmake).
const BuildInfo& GetBuildInfo();

// Several lines; the first is "zeroplan 0.1.0".
std::string VersionText();

}  // namespace zeroplan
