// Two ranks of a run as processes of a test, one of which is to die.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "tests/executor/process/thread_ranks.h"

namespace zeroplan {

// Calls fn(group) in each, made by fork() before any thread is there. Returns how they ended, as
// waitpid has it, by rank: with exit code 0; with 4 if it threw that `victim` is lost; with 2 if it
// threw another error.
inline std::array<int, 2> AsForkedRanks(int victim, const std::function<void(TcpGroup&)>& fn) {
  int port = 0;
  UniqueFd listener = Listen("127.0.0.1", false, port);
  std::array<pid_t, 2> pids;
  for (int rank = 0; rank < 2; ++rank) {
    pid_t& pid = pids[static_cast<size_t>(rank)];
    pid = fork();
    REQUIRE(pid >= 0);
    if (pid != 0) continue;
    int code = 1;
    try {
      ProcessPlace place = PlaceOf(rank, 2, port);
      if (rank == 0) {
        place.listen_fd = listener.Release();
      } else {
        listener.Close();
      }
      TcpGroup group(place, Patient());
      fn(group);
      code = 0;
    } catch (const Error& error) {
      const std::string expected = "rank " + std::to_string(victim) + ": lost (connection closed)";
      code = error.what() == expected ? 4 : 2;
    } catch (...) {
    }
    _exit(code);
  }
  listener.Close();
  std::array<int, 2> ends{};
  for (size_t rank = 0; rank < 2; ++rank) waitpid(pids[rank], &ends[rank], 0);
  return ends;
}

}  // namespace zeroplan
