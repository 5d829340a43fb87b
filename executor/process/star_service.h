// The thread behind a TcpGroup: it alone touches the connections; callers leave orders and wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/process/connection.h"
#include "executor/process/star_frames.h"
#include "executor/process/tcp_group.h"

namespace zeroplan {

class StarService {
 public:
  // `peers` by rank: open are, on rank 0, all others, else rank 0 alone.
  StarService(const ProcessPlace& place, const TcpGroupOptions& options,
              std::vector<Connection> peers);
  ~StarService();  // see ~TcpGroup
  StarService(const StarService&) = delete;
  StarService& operator=(const StarService&) = delete;

  const ProcessPlace& place() const { return place_; }
  // This rank's part goes to rank 0; what comes back is every rank's (kAllGather), rank 0's of
  // `size` bytes (kBroadcast) or nothing (kBarrier). Throws once the run has failed.
  std::vector<std::string> Collective(CollectiveCall call, std::string bytes, uint64_t size);
  void SetDeadline(std::chrono::milliseconds limit, const std::string& purpose);
  void Fail(ExitCode code, const std::string& message) noexcept;

  bool failed() const noexcept { return failed_.load(); }
  std::string failure() const;
  ExitCode failure_code() const noexcept;
  bool rank_0_says_it() const noexcept;

 private:
  struct Peer {
    Connection connection;
    bool writing = false;  // the poller looks for room to send
    bool left = false;     // said goodbye
    // Its position as it last reported it, and since when.
    std::string doing;
    SteadyTime doing_since;
  };

  bool is_hub() const { return place_.rank == 0; }
  void Wake() noexcept;
  bool RunHasFailed() const { return failed_.load(); }
  Doing OwnDoing() const;  // REQUIRES: mutex_ is held

  // All below: on the thread only.
  void Serve();
  void Turn();
  void ForgiveGap(SteadyTime now);
  void Attend(size_t rank);
  void Send(size_t rank, SharedFrame frame);
  void SendAll(const SharedFrame& frame);
  void TakeOrders(SteadyTime now);
  void OrderPart(Part part, SteadyTime now);
  void SayAlive();
  void CheckTimes(SteadyTime now);
  void Handle(int rank, const Frame& frame);
  void HandleAsHub(int rank, const Frame& frame);
  void HandleAsRank(const Frame& frame);
  void HandleFailed(int rank, const std::string& payload);
  void TakePart(int rank, Part part);
  void CheckLeavers();
  void Complete();
  void Deliver(std::vector<std::string> texts);
  void Lose(size_t rank);
  void Broke(int rank, std::string_view what);
  std::string WhoHasNotCome(SteadyTime now) const;
  void RunFailed(Failure failure, bool told_by_hub = false);
  bool MayEnd(SteadyTime now) const;
  void EndIfStuck(SteadyTime now) const;

  const ProcessPlace place_;
  const TcpGroupOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Part> order_part_;                  // from Collective()
  std::optional<Failure> order_failure_;            // from Fail()
  std::optional<std::vector<std::string>> result_;  // to Collective()
  bool leaving_ = false;
  bool say_now_ = false;  // what this rank is at has changed
  Failure failure_;       // set before failed_
  bool told_by_hub_ = false;
  std::atomic<bool> failed_ = false;
  uint64_t next_number_ = 0;  // of this rank's next collective
  std::chrono::milliseconds limit_;
  std::string purpose_;
  std::string position_ = "before its first collective";
  SteadyTime progress_;  // of the caller: when it last did something here

  // The thread's own.
  std::vector<Peer> peers_;
  Poller poller_;
  std::vector<size_t> look_at_;             // peers to attend to, whatever the poller says
  std::vector<std::optional<Part>> parts_;  // rank 0: of the collective under way
  size_t came_ = 0;                         // how many of them
  size_t first_came_ = 0;                   // rank
  SteadyTime collective_began_;
  std::chrono::milliseconds collective_limit_{0};
  std::optional<Part> pending_;  // this rank's, on the others, without its bytes
  SteadyTime pending_since_;
  std::optional<Failure> own_failure_;  // told to rank 0, which has not answered
  SteadyTime own_failure_limit_, failed_at_, last_turn_, last_alive_, leave_limit_;
  bool said_goodbye_ = false;
  UniqueFd wake_;
  std::thread thread_;  // last
};

}  // namespace zeroplan
