// The ranks of a run as threads of a test, with groups over localhost.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "executor/process/rendezvous.h"
#include "executor/process/tcp_group.h"
#include "tests/patience.h"

namespace zeroplan {

inline ProcessPlace PlaceOf(int rank, int world_size, int port) {
  ProcessPlace place;
  place.rank = place.local_rank = rank;
  place.world_size = place.local_world_size = world_size;
  place.address = "127.0.0.1";
  place.port = port;
  place.run_token = "token";
  return place;
}

// Limits that nobody runs into.
inline TcpGroupOptions Patient() {
  TcpGroupOptions options;
  options.meet_limit = options.silence_limit = options.collective_limit = kNoLimit;
  options.verdict_limit = options.leave_limit = kNoLimit;
  return options;
}

// The errors that the ranks threw, a line each; "" if none threw.
inline std::string ErrorsOf(const std::vector<std::string>& errors) {
  std::string lines;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) lines += fmt::format("rank {}: {}\n", rank, errors[rank]);
  }
  return lines;
}

// Calls fn(group) as each of `world_size` ranks; what each threw, by rank.
inline std::vector<std::string> AsRanks(int world_size, const std::function<void(TcpGroup&)>& fn,
                                        const TcpGroupOptions& options = Patient()) {
  // As the program does: Gloo writes to ranks that have gone.
  std::signal(SIGPIPE, SIG_IGN);
  int port = 0;
  UniqueFd listener = Listen("127.0.0.1", false, port);
  std::vector<std::string> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    ProcessPlace place = PlaceOf(rank, world_size, port);
    if (rank == 0) place.listen_fd = listener.Release();
    threads.emplace_back([&errors, &fn, &options, place] {
      try {
        TcpGroup group(place, options);
        fn(group);
      } catch (const Error& error) {
        errors[static_cast<size_t>(place.rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace zeroplan
