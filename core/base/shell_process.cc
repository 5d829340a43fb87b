#include "core/base/shell_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

std::vector<char*> ArgvOf(std::vector<std::string>& words) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

std::string FindProgram(const std::string& word) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (word.find('/') != std::string::npos) return fs::absolute(word, failed).string();
  const char* set = std::getenv("PATH");
  const std::string folders = set != nullptr ? set : "/usr/local/bin:/usr/bin:/bin";
  for (const std::string_view folder : Split(folders, ':')) {
    if (word.empty() || !folder.starts_with('/')) continue;
    std::string file = fmt::format("{}/{}", folder, word);
    if (fs::is_regular_file(file, failed) && access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

std::filesystem::path ProgramFolder() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
}

std::string PipInstall(const std::string& packages) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path folder = ProgramFolder();
  const bool environment = fs::exists(folder / "python3", unknown) &&
                           fs::exists(folder.parent_path() / "pyvenv.cfg", unknown);
  return environment ? fmt::format("{} -m pip install {}", (folder / "python3").string(), packages)
                     : "pip install " + packages;
}

void StdioPipes::Become() const {
  dup2(their_in.get(), STDIN_FILENO);
  dup2(their_out.get(), STDOUT_FILENO);
  dup2(their_err.get(), STDERR_FILENO);
}

StdioPipes MakeStdioPipes(const std::string& whose) {
  int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
  const bool made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) == 0 &&
                    pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
  const int why = errno;
  StdioPipes pipes{UniqueFd(in[0]), UniqueFd(out[0]), UniqueFd(err[0]),
                   UniqueFd(in[1]), UniqueFd(out[1]), UniqueFd(err[1])};
  if (!made) ThrowRuntime("{}: cannot make a pipe: {}", whose, std::strerror(why));
  return pipes;
}

}  // namespace zeroplan
