#include "executor/measure/part_runner.h"

#include <chrono>
#include <exception>

#include "core/base/error.h"

namespace zeroplan {

void PartRunner::Run(const std::string& name, const std::string& what, const Measure& measure) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto failed = [&](const char* why) {
    result_.failed.push_back({name, why});
    say_(fmt::format("{}: failed after {:.1f} s: {}", name, seconds(), why));
    ThrowRuntime("measuring {}: {}", name, why);
  };
  say_(fmt::format("{}: {}", name, what));
  // Half a table would pass for a whole one.
  MachineMeasurement found = result_;
  try {
    measure(found);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kRuntime) throw;
    failed(error.what());
  } catch (const std::exception& error) {
    failed(error.what());
  }
  result_ = std::move(found);
  result_.measured.push_back(name);
  say_(fmt::format("{}: {:.1f} s", name, seconds()));
}

bool PartRunner::Try(const std::string& name, const std::string& what, const Measure& measure) {
  const size_t before = result_.failed.size();
  try {
    Run(name, what, measure);
  } catch (const Error&) {
    if (result_.failed.size() == before) throw;
    return false;
  }
  return true;
}

}  // namespace zeroplan
