// Detects that the ranks of this process make no progress, reports what they are doing, and ends
// the run.
//
// The watch has a thread of its own, which no rank can block. When a limit expires, it writes a
// line for each rank. If one of them blocks the others by itself (it reads a batch, runs a host
// kernel, or is outside the engine), the run fails at once, and the message names that rank. If all
// wait for a GPU or other ranks, another process may know the cause: the run fails a little later,
// unless that process has failed it before. The watch releases all waits that can be released; a
// process that still exists after that is ended with kRuntime.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/program/program.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// The present activity of a rank's thread in its program: written by the thread, read by any other.
enum class Doing : uint8_t {
  kNothing,      // not called, or its call has ended
  kReadsBatch,   // in the caller's FillBatch
  kRuns,         // an instruction, or the call that issues it
  kMeetsOthers,  // a collective between ranks that are threads
  kAwaitsGpu,    // it has issued everything up to this instruction
  kAwaitsEvent,  // at a wait of the program
};

struct Standpoint {
  Doing doing = Doing::kNothing;
  Section section = Section::kInit;
  uint32_t index = 0;       // index within the section
  uint16_t repetition = 0;  // micro-step
};

// The place of a thread, with one writer.
class RankPlace {
 public:
  void Set(Doing doing, Section section, size_t index, int repetition) noexcept {
    const uint64_t packed = static_cast<uint64_t>(doing) | static_cast<uint64_t>(section) << 8 |
                            static_cast<uint64_t>(static_cast<uint16_t>(repetition)) << 16 |
                            static_cast<uint64_t>(index) << 32;
    place_.store(packed, std::memory_order_relaxed);
    moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // Changes what it does at the same instruction.
  void Turn(Doing doing) noexcept {
    const Standpoint at = get();
    Set(doing, at.section, at.index, at.repetition);
  }
  void CountCollectives(uint64_t count) noexcept {
    collectives_.store(collectives_.load(std::memory_order_relaxed) + count,
                       std::memory_order_relaxed);
  }

  Standpoint get() const noexcept {
    const uint64_t packed = place_.load(std::memory_order_relaxed);
    return {static_cast<Doing>(packed & 0xff), static_cast<Section>(packed >> 8 & 0xff),
            static_cast<uint32_t>(packed >> 32), static_cast<uint16_t>(packed >> 16 & 0xffff)};
  }
  // Changes whenever the thread progresses.
  uint64_t moves() const noexcept { return moves_.load(std::memory_order_relaxed); }
  // Collectives begun or issued since the rank was made.
  uint64_t collectives() const noexcept { return collectives_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> place_{0}, moves_{0}, collectives_{0};
};

// The present activity of one rank.
struct Standing {
  int rank = 0;
  std::string doing;      // "waits for its GPU; ..."
  bool holds_up = false;  // it blocks others by itself: it waits for no GPU and no other rank
  bool outside = false;   // it runs nothing: its caller is outside the engine
};

// The ranks that are watched. Every call comes from the watch's thread.
class Watched {
 public:
  virtual std::vector<Standing> Standings() const = 0;
  // Sets a value for each rank, which changes whenever the rank progresses.
  virtual void Moves(std::vector<uint64_t>& moves) const = 0;
  // An asynchronous error of a library; empty: none.
  virtual std::string Problem() const { return {}; }
  // Fails the ranks with `cause` and releases those that wait for others.
  virtual void Interrupt(const std::exception_ptr& cause) noexcept = 0;

 protected:
  ~Watched() = default;
};

// Work of a process concurrent with its ranks. Every call comes from the watch's thread.
class WatchedBeside {
 public:
  // "saving step 40: rank 3 writes FILE"; empty: no work is under way, or it waits for others.
  virtual std::string Doing() const = 0;
  // Changes whenever the work progresses.
  virtual uint64_t moves() const = 0;

 protected:
  ~WatchedBeside() = default;
};

struct WatchOptions {
  ProcessGroup* group = nullptr;  // null: this process alone; must outlive the watch
  std::chrono::milliseconds look_every{200};
  // The time that a process whose ranks all wait lets pass before it fails the run: less than a
  // group's own limits.
  std::chrono::milliseconds patience{5'000};
  // The time for the process to end by itself after a failure: with other processes, which the
  // group's own limit may end, and alone.
  std::chrono::milliseconds grace{20'000}, grace_alone{5'000};
  std::function<void(std::string_view)> write;  // default: stderr, without blocking for long
  std::function<void()> end;                    // default: _exit(4)
  // The clock of the limits, read once in each round of the watch.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class Watch {
 public:
  using Seconds = std::chrono::duration<double>;

  explicit Watch(WatchOptions options = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // `what` must end within `limit` from this call on, or, if it `renews`, no rank may make no
  // progress for that long. Ends with the next call of this or of Rest. 0: no limit.
  void Expect(std::string what, Seconds limit, bool renews = false);
  // Ends the present expectation.
  void Rest() { Expect({}, Seconds(0)); }

  // During its lifetime, the ranks' caller may wait for other processes.
  class Meeting {
   public:
    explicit Meeting(Watch& watch) : watch_(watch) { watch_.meets_.store(true); }
    ~Meeting() { watch_.meets_.store(false); }
    Meeting(const Meeting&) = delete;
    Meeting& operator=(const Meeting&) = delete;

   private:
    Watch& watch_;
  };

  // Sets the watched ranks; null: none. They must exist until the next call.
  void Observe(Watched* watched);
  // Sets concurrent work that must progress within `limit` at a time; 0: no limit. Null: none. It
  // must exist until the next call.
  void ObserveBeside(WatchedBeside* beside, Seconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  struct Mover {
    uint64_t moves = 0;
    Clock::time_point since;
  };

  bool alone() const { return options_.group == nullptr || options_.group->world_size() == 1; }
  std::chrono::milliseconds grace() const {
    return alone() ? options_.grace_alone : options_.grace;
  }
  void Serve();
  void Look(Clock::time_point now);
  void NoteMoves(Clock::time_point now);
  // Fails the run if the concurrent work has made no progress for too long.
  void LookBeside(Clock::time_point now);
  // Writes what the ranks are doing. Returns the message with which the run fails.
  std::string Tell(Clock::time_point now);
  void Fail(const std::string& message);

  const WatchOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::atomic<bool> meets_{false};
  Watched* watched_ = nullptr;
  WatchedBeside* beside_ = nullptr;
  Seconds beside_limit_{0};
  Mover beside_mover_;
  std::string what_;
  Seconds limit_{0};
  bool renews_ = false;
  Clock::time_point began_, last_look_, told_at_, failed_at_;
  bool told_ = false, failed_ = false, waits_for_others_ = false;
  std::string message_;
  std::vector<uint64_t> moves_;
  std::vector<Mover> movers_;
  std::jthread thread_;  // last
};

}  // namespace zeroplan
