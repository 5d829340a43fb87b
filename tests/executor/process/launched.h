// A launcher of ranks under test: tests/process_child.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files.h"
#include "tests/paths.h"

namespace zeroplan {

// One, with what it prints to stderr.
class Launched {
 public:
  // tests/process_child's main.cc says what the words mean.
  Launched(int ranks, std::chrono::milliseconds patience, const std::vector<std::string>& behaviour,
           bool own_group = false, rlim_t open_files = 0, bool hard = false)
      : Launched({"launch", std::to_string(ranks), std::to_string(patience.count())}, behaviour,
                 own_group, open_files, hard) {}
  Launched(const std::vector<std::string>& how, const std::vector<std::string>& behaviour,
           bool own_group = false, rlim_t open_files = 0, bool hard = false) {
    std::vector<std::string> words = {BinaryPath("zeroplan_process_child")};
    words.insert(words.end(), how.begin(), how.end());
    words.push_back("rank");
    words.insert(words.end(), behaviour.begin(), behaviour.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_ = UniqueFd(ends[0]);
    const UniqueFd write_end(ends[1]);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      if (own_group) setpgid(0, 0);
      if (open_files > 0) {
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = open_files;
        if (hard) limit.rlim_max = open_files;
        setrlimit(RLIMIT_NOFILE, &limit);
      }
      dup2(write_end.get(), STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  Launched(Launched&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        read_(std::move(other.read_)),
        text_(std::move(other.text_)) {}
  ~Launched() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  // Reads until `needle` was printed `count` times, or the end.
  void Await(const std::string& needle, int count) {
    while (Count(needle) < count && ReadSome()) {
    }
  }
  // The exit code, once every process that holds the pipe is gone: no rank may outlive its run.
  int End() {
    while (ReadSome()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  const std::string& text() const { return text_; }
  int Count(const std::string& needle) const {
    int count = 0;
    for (size_t at = text_.find(needle); at != std::string::npos; at = text_.find(needle, at + 1)) {
      ++count;
    }
    return count;
  }

 private:
  bool ReadSome() {
    char buffer[4096];
    const ssize_t got = read(read_.get(), buffer, sizeof buffer);
    if (got > 0) text_.append(buffer, static_cast<size_t>(got));
    return got > 0;
  }

  pid_t pid_ = -1;
  UniqueFd read_;
  std::string text_;
};

}  // namespace zeroplan
