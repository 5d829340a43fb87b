#include "core/base/nearest_name.h"

#include <algorithm>

namespace zeroplan {
namespace {

// Insertions, deletions, substitutions and swaps of neighbours ("satge") count one each.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substituted});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

// Characters that both begin with.
size_t Shared(std::string_view a, std::string_view b) {
  size_t count = 0;
  while (count < std::min(a.size(), b.size()) && a[count] == b[count]) ++count;
  return count;
}

}  // namespace

std::string NearestName(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kMaxDistance = 3;
  size_t best = kMaxDistance + 1;
  std::string nearest;
  for (const std::string& name : known) {
    const size_t gap =
        name.size() > word.size() ? name.size() - word.size() : word.size() - name.size();
    if (gap > best) continue;  // also keeps a hostile, very long word cheap
    const size_t distance = EditDistance(word, name);
    if (distance > kMaxDistance || 2 * distance >= word.size()) continue;
    if (distance < best || (distance == best && Shared(word, name) > Shared(word, nearest))) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace zeroplan
