// What the ranks of a run know and a stranger does not.
#pragma once

#include <string>

namespace zeroplan {

// The secret in a file, line feeds at its end left out. Throws Error(kUsage) naming the file where
// it cannot be read, is another user's, may be read by others (chmod 600 is the fix), is shorter
// than kMinSecret bytes or longer than 4096.
std::string ReadSecretFile(const std::string& path);

inline constexpr size_t kMinSecret = 16;

// `bytes` random bytes of the system. Throws Error(kRuntime).
std::string RandomBytes(size_t bytes);

}  // namespace zeroplan
