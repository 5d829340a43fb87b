// Runs a folder's tests. What a test case writes to stderr is shown only if it fails: tests of what
// goes wrong make hundreds of warnings, among which a failure would not be found. A filter that
// finds no test case fails.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

namespace {

// Sanitizers write to stderr what they find and end the process, so they get it as it is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHoldsStderr = false;
#else
constexpr bool kHoldsStderr = true;
#endif

// Holds stderr in a temporary file from a test case's begin to its end.
class HeldStderr : public doctest::IReporter {
 public:
  explicit HeldStderr(const doctest::ContextOptions& /*options*/) {}

  void test_case_start(const doctest::TestCaseData& /*data*/) override {
    if (!kHoldsStderr) return;
    std::fflush(stderr);
    held_ = std::tmpfile();
    if (held_ == nullptr) return;
    // Not for the processes that tests start.
    fcntl(fileno(held_), F_SETFD, FD_CLOEXEC);
    stderr_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    dup2(fileno(held_), STDERR_FILENO);
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    if (held_ == nullptr) return;
    std::fflush(stderr);
    dup2(stderr_, STDERR_FILENO);
    close(stderr_);
    if (!stats.testCaseSuccess) Show();
    std::fclose(held_);
    held_ = nullptr;
  }

  static inline unsigned cases_run = 0;

  void report_query(const doctest::QueryData& /*data*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run = stats.numTestCasesPassingFilters;
  }
  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*exception*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*data*/) override {}
  void log_message(const doctest::MessageData& /*data*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}

 private:
  void Show() {
    std::rewind(held_);
    char block[4096];
    for (size_t n; (n = std::fread(block, 1, sizeof block, held_)) > 0;) {
      std::fwrite(block, 1, n, stderr);
    }
    std::fflush(stderr);
  }

  std::FILE* held_ = nullptr;
  int stderr_ = -1;
};

REGISTER_LISTENER("held_stderr", 1, HeldStderr);

}  // namespace

int main(int argc, char** argv) {
  // What runs in the background, or under nohup, ignores some, and so would what tests start.
  for (const int stop : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGTSTP}) signal(stop, SIG_DFL);
  doctest::Context context(argc, argv);
  const int code = context.run();
  if (context.shouldExit() || HeldStderr::cases_run > 0) return code;
  std::fputs("zeroplan: no test case passes these filters\n", stderr);
  return 1;
}
