#include "executor/collectives/gloo/gloo_communicators.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

namespace {

// Elements of a message of a reduction: enough that its own cost is little beside its bytes, and
// few enough that a chain of ranks is soon busy from end to end.
constexpr uint64_t kPieceElements = 1u << 17;
// Pieces that a rank has room for at a time. Together they cover what a link of 10 Gb/s has under
// way in 3 ms.
constexpr uint64_t kWindow = 8;
// A rank's part of a collective whose bytes take less time than the hops of a ring or chain.
constexpr uint64_t kFewBytes = 8u << 10;
// Less work than this is not worth a second thread.
constexpr int64_t kGrainElements = 1 << 15;

template <typename Fn>
void ForElements(ThreadPool* pool, uint64_t count, Fn&& fn) {
  if (pool == nullptr) return fn(uint64_t{0}, count);
  pool->ParallelFor(static_cast<int64_t>(count), kGrainElements,
                    [&](int64_t begin, int64_t end, int /*worker*/) {
                      fn(static_cast<uint64_t>(begin), static_cast<uint64_t>(end - begin));
                    });
}

// Room for `bytes`, whatever was in it.
std::byte* Room(std::vector<std::byte>& staging, uint64_t bytes) {
  if (staging.size() < bytes) staging.resize(bytes);
  return staging.data();
}

}  // namespace

bool ReducesAlongChain(std::span<const std::string> hosts, uint64_t element_bytes,
                       uint64_t sum_bytes) {
  std::map<std::string, uint64_t> ranks_of;
  for (const std::string& host : hosts) ++ranks_of[host];
  const uint64_t ranks = hosts.size();
  // By host, in bytes of one element of each rank's part.
  std::map<std::string, uint64_t> along;
  for (size_t p = 0; p + 1 < ranks; ++p) {
    if (hosts[p] != hosts[p + 1]) along[hosts[p]] += sum_bytes * ranks;
  }
  uint64_t directly = 0, chain = 0;
  for (const auto& [host, here] : ranks_of) {
    directly = std::max(directly, here * (ranks - here) * element_bytes);
    if (host == hosts.back()) along[host] += (ranks - here) * element_bytes;
    chain = std::max(chain, along[host]);
  }
  return chain < directly;
}

GlooCommunicators::GlooCommunicators(const RankAxes& axes, ProcessGroup& group,
                                     double limit_seconds)
    : axes_(axes), group_(group), links_(group, limit_seconds) {
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<RankAxis>(a);
    Members& members = members_[static_cast<size_t>(a)];
    for (int rank = 0; rank < axes.ranks(); ++rank) {
      if (axes.Group(axis, rank) != axes.Group(axis, group.rank())) continue;
      members.ranks.push_back(rank);
      members.hosts.push_back(links_.hosts()[static_cast<size_t>(rank)]);
    }
    members.place = static_cast<size_t>(axes.Place(axis, group.rank()));
  }
}

void GlooCommunicators::Run(RankAxis axis, int rank, const CommCall& call, ThreadPool* pool) {
  ZEROPLAN_CHECK(rank == group_.rank(), "rank {} is not this process's, which is {}", rank,
                 group_.rank());
  axis_ = axis;
  meets_ = &members_[static_cast<size_t>(axis)];
  index_ = 0;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      Reduce(call, pool);
      GatherReduced(call);
      break;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceToOwners:
      Reduce(call, pool);
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      GatherParts(call, pool);
      break;
    case CollectiveKind::kAllToAll:
      AllToAll(call);
      break;
  }
  ++meets_->calls;
}

double GlooCommunicators::TakeWaitedSeconds(int) { return std::exchange(waited_seconds_, 0); }

void GlooCommunicators::Abort(const std::exception_ptr& cause) noexcept {
  FailOf(group_, cause);
  links_.Abort(cause);
}

// ---- messages ----

// Both ends count alike, each axis for itself.
static_assert(kAxes <= 4);
uint64_t GlooCommunicators::Number(uint64_t index) const {
  return static_cast<uint64_t>(axis_) << 62 | (meets_->calls & 0xffffffffu) << 30 | index;
}

GlooCommunicators::Message GlooCommunicators::Send(size_t to, uint64_t index, const std::byte* data,
                                                   uint64_t bytes) {
  return links_.Send(members().ranks[to], Number(index), data, bytes);
}

GlooCommunicators::Message GlooCommunicators::Receive(size_t from, uint64_t index, std::byte* data,
                                                      uint64_t bytes) {
  return links_.Receive(members().ranks[from], Number(index), data, bytes);
}

void GlooCommunicators::Await(Message& message) {
  if (!message) return;
  const auto begin = std::chrono::steady_clock::now();
  links_.Await(message);
  waited_seconds_ += SecondsSince(begin);
}

// ---- reductions ----

std::vector<GlooCommunicators::Piece> GlooCommunicators::PiecesOf(const CommCall& call) const {
  const uint64_t bytes = DtypeBytes(call.dtype);
  std::vector<Piece> pieces;
  // `count` elements of the rank at `owner`, from `src` on, `into` elements into its dst.
  const auto add = [&](const CommSegment& segment, uint64_t src, uint64_t count, size_t owner,
                       uint64_t into) {
    for (uint64_t at = 0; at < count; at += kPieceElements) {
      Piece piece;
      piece.src = segment.src + (src + at) * bytes;
      piece.count = std::min(kPieceElements, count - at);
      piece.owner = owner;
      if (owner == place()) piece.dst = segment.dst + (into + at) * bytes;
      pieces.push_back(piece);
    }
  };
  for (const CommSegment& segment : call.segments) {
    for (size_t owner = 0; owner < size(); ++owner) {
      const uint64_t shard = owner * segment.elements;
      if (call.kind == CollectiveKind::kAllReduce) {
        const auto [begin, end] = AllReduceSlice(segment.elements, owner, size());
        add(segment, begin, end - begin, owner, begin);
      } else if (call.kind == CollectiveKind::kReduceScatter) {
        add(segment, shard, segment.elements, owner, 0);
      } else {
        const uint64_t begin = std::max(segment.begin, shard);
        const uint64_t end = std::min(segment.end, shard + segment.elements);
        if (begin < end) add(segment, begin - segment.begin, end - begin, owner, begin - shard);
      }
    }
  }
  return pieces;
}

void GlooCommunicators::Reduce(const CommCall& call, ThreadPool* pool) {
  const std::vector<Piece> pieces = PiecesOf(call);
  const uint64_t bytes = DtypeBytes(call.dtype);
  uint64_t elements = 0;
  for (const Piece& piece : pieces) elements += piece.count;
  if (elements * bytes > size() * kFewBytes &&
      ReducesAlongChain(members().hosts, bytes, SumBytes(call.dtype))) {
    ReduceAlongChain(call.dtype, pieces, pool);
  } else {
    ReduceDirectly(call.dtype, pieces, pool);
  }
  index_ += 2 * pieces.size();
}

void GlooCommunicators::ReduceDirectly(Dtype dtype, std::span<const Piece> pieces,
                                       ThreadPool* pool) {
  const uint64_t bytes = DtypeBytes(dtype);
  std::vector<size_t> own;  // pieces of this rank
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].owner == place()) own.push_back(p);
  }
  // Room for the others' terms of kWindow own pieces at a time.
  const uint64_t room = kPieceElements * bytes;
  std::byte* staging = Room(staging_, std::min<uint64_t>(kWindow, own.size()) * size() * room);
  const auto term = [&](size_t i, size_t from) {
    return staging + (i % kWindow * size() + from) * room;
  };
  std::vector<Message> terms(std::min<uint64_t>(kWindow, own.size()) * size());
  const auto receive = [&](size_t i) {
    for (size_t from = 0; from < size(); ++from) {
      if (from == place()) continue;
      terms[i % kWindow * size() + from] =
          Receive(from, index_ + own[i], term(i, from), pieces[own[i]].count * bytes);
    }
  };
  for (size_t i = 0; i < std::min<size_t>(kWindow, own.size()); ++i) receive(i);
  std::vector<Message> sent;
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].owner == place()) continue;
    sent.push_back(Send(pieces[p].owner, index_ + p, pieces[p].src, pieces[p].count * bytes));
  }
  std::vector<const std::byte*> sources(size());
  for (size_t i = 0; i < own.size(); ++i) {
    const Piece& piece = pieces[own[i]];
    for (size_t from = 0; from < size(); ++from) {
      Await(terms[i % kWindow * size() + from]);
      sources[from] = from == place() ? piece.src : term(i, from);
    }
    ForElements(pool, piece.count, [&](uint64_t begin, uint64_t count) {
      SumElements(dtype, sources, begin, std::span(&piece.dst, 1), begin, count);
    });
    if (i + kWindow < own.size()) receive(i + kWindow);
  }
  for (Message& message : sent) Await(message);
}

void GlooCommunicators::ReduceAlongChain(Dtype dtype, std::span<const Piece> pieces,
                                         ThreadPool* pool) {
  const uint64_t bytes = DtypeBytes(dtype), sum_bytes = SumBytes(dtype);
  const bool first = place() == 0, last = place() + 1 == size();
  // A piece's place is the next but kWindow's again: half of them come, half of them go.
  constexpr uint64_t kPlaces = 2 * kWindow;
  const uint64_t room = kPieceElements * sum_bytes;
  std::byte* staging = Room(staging_, 2 * kPlaces * room);
  const auto sum_of = [&](size_t p) { return staging + p % kPlaces * room; };
  const auto rounded_of = [&](size_t p) { return staging + (kPlaces + p % kPlaces) * room; };
  std::vector<Message> coming(kPlaces), going(kPlaces), results;
  const auto receive = [&](size_t p) {
    Await(going[p % kPlaces]);
    if (first) return;
    coming[p % kPlaces] = Receive(place() - 1, index_ + p, sum_of(p), pieces[p].count * sum_bytes);
  };
  if (!last) {
    for (size_t p = 0; p < pieces.size(); ++p) {
      const Piece& piece = pieces[p];
      if (piece.owner != place()) continue;
      results.push_back(
          Receive(size() - 1, index_ + pieces.size() + p, piece.dst, piece.count * bytes));
    }
  }
  for (size_t p = 0; p < std::min<size_t>(kWindow, pieces.size()); ++p) receive(p);
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    if (p + kWindow < pieces.size()) receive(p + kWindow);
    Await(coming[p % kPlaces]);
    std::byte* sum = sum_of(p);
    ForElements(pool, piece.count, [&](uint64_t begin, uint64_t count) {
      AddToSum(dtype, piece.src + begin * bytes, count, first, sum + begin * sum_bytes);
    });
    if (!last) {
      going[p % kPlaces] = Send(place() + 1, index_ + p, sum, piece.count * sum_bytes);
    } else if (piece.owner == place()) {
      RoundSum(dtype, sum, piece.count, piece.dst);
    } else {
      std::byte* rounded = rounded_of(p);
      RoundSum(dtype, sum, piece.count, rounded);
      going[p % kPlaces] =
          Send(piece.owner, index_ + pieces.size() + p, rounded, piece.count * bytes);
    }
  }
  for (Message& message : going) Await(message);
  for (Message& message : results) Await(message);
}

// ---- gathers ----

void GlooCommunicators::GatherReduced(const CommCall& call) {
  const uint64_t bytes = DtypeBytes(call.dtype);
  std::vector<std::vector<GatherPart>> lists;
  for (const CommSegment& segment : call.segments) {
    std::vector<GatherPart>& parts = lists.emplace_back();
    for (size_t p = 0; p < size(); ++p) {
      const auto [begin, end] = AllReduceSlice(segment.elements, p, size());
      parts.push_back({segment.dst + begin * bytes, (end - begin) * bytes});
    }
  }
  Gather(lists);
}

void GlooCommunicators::GatherParts(const CommCall& call, ThreadPool* pool) {
  std::vector<std::vector<GatherPart>> lists;
  for (const CommSegment& segment : call.segments) {
    const uint64_t bytes = segment.elements * DtypeBytes(call.dtype);
    std::vector<GatherPart>& parts = lists.emplace_back();
    for (size_t p = 0; p < size(); ++p) parts.push_back({segment.dst + p * bytes, bytes});
    std::byte* own = parts[place()].data;
    if (own == segment.src) continue;
    ForElements(pool, bytes, [&](uint64_t begin, uint64_t count) {
      std::memcpy(own + begin, segment.src + begin, count);
    });
  }
  Gather(lists);
}

void GlooCommunicators::Gather(std::span<const std::vector<GatherPart>> lists) {
  std::vector<uint64_t> bytes(size(), 0);
  for (const std::vector<GatherPart>& parts : lists) {
    for (size_t p = 0; p < size(); ++p) bytes[p] += parts[p].bytes;
  }
  if (*std::max_element(bytes.begin(), bytes.end()) > kFewBytes) return PassAround(lists);
  std::vector<Message> messages;
  for (size_t l = 0; l < lists.size(); ++l) {
    for (size_t p = 0; p < size(); ++p) {
      const GatherPart& part = lists[l][p];
      if (p == place() || part.bytes == 0) continue;
      messages.push_back(Receive(p, index_ + l, part.data, part.bytes));
    }
    const GatherPart& own = lists[l][place()];
    for (size_t p = 0; p < size(); ++p) {
      if (p == place() || own.bytes == 0) continue;
      messages.push_back(Send(p, index_ + l, own.data, own.bytes));
    }
  }
  for (Message& message : messages) Await(message);
}

// In round k a rank sends on what it got in round k - 1, first its own: the part of the rank k
// places before it.
void GlooCommunicators::PassAround(std::span<const std::vector<GatherPart>> lists) {
  const size_t ranks = size(), next = (place() + 1) % ranks, before = (place() + ranks - 1) % ranks;
  const auto part = [&](size_t list, size_t rounds_back) {
    return lists[list][(place() + ranks - rounds_back) % ranks];
  };
  const auto index = [&](size_t round, size_t list) {
    return index_ + round * lists.size() + list;
  };
  std::vector<Message> coming, going;
  for (size_t round = 0; round + 1 < ranks; ++round) {
    for (size_t l = 0; l < lists.size(); ++l) {
      const GatherPart to = part(l, round + 1);
      coming.push_back(to.bytes == 0 ? Message()
                                     : Receive(before, index(round, l), to.data, to.bytes));
    }
  }
  for (size_t round = 0; round + 1 < ranks; ++round) {
    for (size_t l = 0; l < lists.size(); ++l) {
      if (round > 0) Await(coming[(round - 1) * lists.size() + l]);
      const GatherPart from = part(l, round);
      if (from.bytes > 0) going.push_back(Send(next, index(round, l), from.data, from.bytes));
    }
  }
  for (Message& message : coming) Await(message);
  for (Message& message : going) Await(message);
}

void GlooCommunicators::AllToAll(const CommCall& call) {
  std::vector<Message> messages;
  uint64_t index = index_;
  for (const CommSegment& segment : call.segments) {
    const uint64_t bytes = segment.elements * DtypeBytes(call.dtype);
    if (bytes == 0) continue;
    std::memcpy(segment.dst + place() * bytes, segment.src + place() * bytes, bytes);
    for (size_t p = 0; p < size(); ++p) {
      if (p != place()) messages.push_back(Receive(p, index, segment.dst + p * bytes, bytes));
    }
    for (size_t p = 0; p < size(); ++p) {
      if (p != place()) messages.push_back(Send(p, index, segment.src + p * bytes, bytes));
    }
    ++index;
  }
  for (Message& message : messages) Await(message);
}

}  // namespace zeroplan
