#include "executor/engine/watch.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "core/base/error.h"
#include "core/base/full_screen.h"
#include "core/base/terminal.h"
#include "core/base/thread.h"
#include "executor/process/host_text.h"

namespace zeroplan {
namespace {

// Where stderr takes nothing (a full pipe that nobody reads) the rest is lost: this thread has to
// end the run.
void WriteWithoutBlocking(std::string_view what) {
  if (HoldMessage(what)) return;
  const std::string message = MessageFor(STDERR_FILENO, what, /*wipe=*/true);
  std::string_view text = message;
  while (!text.empty()) {
    pollfd file{STDERR_FILENO, POLLOUT, 0};
    if (poll(&file, 1, 1000) <= 0) return;
    const ssize_t written =
        write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

WatchOptions WithDefaults(WatchOptions options) {
  if (!options.write) options.write = WriteWithoutBlocking;
  if (!options.end)
    options.end = [] {
      LeaveFullScreenNow();
      _exit(static_cast<int>(ExitCode::kRuntime));
    };
  return options;
}

double SecondsBetween(std::chrono::steady_clock::time_point from,
                      std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Watch::Watch(WatchOptions options)
    : options_(WithDefaults(std::move(options))), last_look_(options_.now()) {
  thread_ = StartThread("the watch of the steps", [this] { Serve(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watch::Expect(std::string what, Seconds limit, bool renews) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
  limit_ = limit;
  renews_ = renews;
  began_ = options_.now();
  if (failed_) return;
  if (told_) options_.write(fmt::format("zeroplan: it has ended now, and the run goes on\n"));
  told_ = false;
}

void Watch::Observe(Watched* watched) {
  const std::lock_guard lock(mutex_);
  watched_ = watched;
  movers_.clear();
}

void Watch::ObserveBeside(WatchedBeside* beside, Seconds limit) {
  const std::lock_guard lock(mutex_);
  beside_ = beside;
  beside_limit_ = limit;
  beside_mover_ = {0, options_.now()};
}

void Watch::Serve() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.look_every, [this] { return stopping_; })) {
    const Clock::time_point now = options_.now();
    // A process that was stopped itself (Ctrl-Z, a debugger) has waited for nobody.
    if (const auto gap = now - last_look_; gap > 5 * options_.look_every) {
      began_ += gap;
      told_at_ += gap;
      failed_at_ += gap;
      beside_mover_.since += gap;
      for (Mover& mover : movers_) mover.since += gap;
    }
    last_look_ = now;
    Look(now);
  }
}

void Watch::NoteMoves(Clock::time_point now) {
  if (watched_ == nullptr) return;
  watched_->Moves(moves_);
  movers_.resize(moves_.size(), {0, now});
  for (size_t i = 0; i < moves_.size(); ++i) {
    if (movers_[i].moves != moves_[i]) movers_[i] = {moves_[i], now};
    if (renews_) began_ = std::max(began_, movers_[i].since);
  }
}

void Watch::LookBeside(Clock::time_point now) {
  if (beside_ == nullptr || beside_limit_.count() <= 0) return;
  const uint64_t moves = beside_->moves();
  const std::string doing = beside_->Doing();
  if (doing.empty() || moves != beside_mover_.moves) beside_mover_ = {moves, now};
  if (now - beside_mover_.since < beside_limit_) return;
  const std::string late = fmt::format("{}, for {:.1f} s without getting anywhere", doing,
                                       SecondsBetween(beside_mover_.since, now));
  options_.write(fmt::format("zeroplan: {}; --step-timeout 0 waits for ever\n", late));
  Fail(late);
}

void Watch::Look(Clock::time_point now) {
  if (failed_) {
    if (now - failed_at_ < grace()) return;
    options_.write(
        fmt::format("zeroplan: {}\nzeroplan: this process did not end within {:.1f} s of that and "
                    "is ended now\n",
                    message_, Seconds(grace()).count()));
    return options_.end();
  }
  NoteMoves(now);
  if (watched_ != nullptr) {
    if (const std::string problem = watched_->Problem(); !problem.empty()) {
      return Fail(what_.empty() ? problem : fmt::format("{}: {}", what_, problem));
    }
  }
  if (LookBeside(now); failed_) return;
  if (!told_) {
    if (limit_.count() <= 0 || now - began_ < limit_) return;
    told_ = true;
    told_at_ = now;
    message_ = Tell(now);
  }
  // Alone there is nobody who may know better.
  if (!alone() && waits_for_others_ && now - told_at_ < options_.patience) return;
  Fail(message_);
}

std::string Watch::Tell(Clock::time_point now) {
  const std::string late =
      fmt::format("{} has taken {:.1f} s{}", what_, SecondsBetween(began_, now),
                  renews_ ? " without getting anywhere" : "");
  std::string lines = fmt::format("zeroplan: {}; --step-timeout says how long is too long\n", late);
  // Ranks of other hosts hear of it, too.
  const std::string where = alone() ? "" : OnHostText(options_.group->host_address());
  std::string culprits, others;
  waits_for_others_ = false;
  if (watched_ == nullptr) {
    culprits = fmt::format("; the ranks of this process are being set up{}", where);
  } else {
    std::vector<Standing> standings = watched_->Standings();
    for (size_t i = 0; i < standings.size(); ++i) {
      Standing& standing = standings[i];
      if (standing.outside && !alone() && meets_.load()) {
        standing.doing = "meets the other processes, between two calls of the engine";
        standing.holds_up = false;
      }
      const double still = i < movers_.size() ? SecondsBetween(movers_[i].since, now) : 0;
      const std::string text =
          fmt::format("rank {} {}, for {:.1f} s{}", standing.rank, standing.doing, still, where);
      lines += fmt::format("zeroplan: {}\n", text);
      if (standing.holds_up) {
        culprits += fmt::format("; rank {} holds it up: it {}, for {:.1f} s{}", standing.rank,
                                standing.doing, still, where);
      } else if (others.empty()) {
        others = "; " + text;
      }
    }
    waits_for_others_ = culprits.empty();
  }
  options_.write(lines);
  if (!culprits.empty()) return late + culprits;
  return late + others;
}

void Watch::Fail(const std::string& message) {
  message_ = message;
  failed_ = true;
  failed_at_ = options_.now();
  if (!alone()) {
    options_.group->FailWith(ExitCode::kRuntime, message);
  }
  if (watched_ != nullptr) {
    watched_->Interrupt(std::make_exception_ptr(Error(ExitCode::kRuntime, message)));
  }
}

}  // namespace zeroplan
