#include "text/files/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/limits.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = size_t{1} << 18;

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const fs::path& path) : path_(path) {
    CheckFileName(path);
    // O_NONBLOCK: opening a pipe by mistake must fail below, not wait for a writer.
    fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd_) ThrowUsage("{}: cannot open: {}", path.string(), std::strerror(errno));
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) {
      ThrowUsage("{}: cannot stat: {}", path.string(), std::strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) ThrowUsage("{}: not a regular file", path.string());
    size_ = static_cast<uint64_t>(info.st_size);
  }

  size_t Read(std::span<char> out) override {
    ssize_t got = 0;
    const int error = WithIoRetries("read", path_, [&] {
      do {
        got = ::read(fd_.get(), out.data(), out.size());
      } while (got < 0 && errno == EINTR);
      return got < 0 ? errno : 0;
    });
    if (error != 0) ThrowUsage("{}: cannot read: {}", path_.string(), std::strerror(error));
    position_ += static_cast<uint64_t>(got);
    return static_cast<size_t>(got);
  }
  uint64_t position() const override { return position_; }
  uint64_t size() const override { return size_; }

 private:
  fs::path path_;
  UniqueFd fd_;
  uint64_t position_ = 0;
  uint64_t size_ = 0;
};

// What is read in blocks and decompressed.
class CompressedSource : public ByteSource {
 public:
  CompressedSource(const fs::path& path, const char* format)
      : path_(path), format_(format), file_(path), block_(kBlockBytes) {}

  size_t Read(std::span<char> out) override {
    for (;;) {
      if (begin_ == end_) {
        begin_ = 0;
        end_ = file_.Read(block_);
        if (end_ == 0) {
          // Something may be left that did not fit before.
          if (const size_t made = within_ ? Decompress(out) : 0; made > 0) return made;
          if (within_) {
            ThrowUsage("{}: the {} data are cut short; get the file again", path_.string(),
                       format_);
          }
          return 0;
        }
      }
      const size_t made = Decompress(out);
      if (made > 0) return made;
    }
  }
  uint64_t position() const override { return file_.position(); }
  uint64_t size() const override { return file_.size(); }

 protected:
  // Takes from input(), by Take; sets within_.
  virtual size_t Decompress(std::span<char> out) = 0;

  std::span<char> input() { return std::span(block_).subspan(begin_, end_ - begin_); }
  void Take(size_t bytes) { begin_ += bytes; }
  [[noreturn]] void Fail(const char* reason) const {
    ThrowUsage("{}: is no sound {} file ({}); get it again, or give it another name",
               path_.string(), format_, reason);
  }

  bool within_ = false;  // of what must go on

 private:
  fs::path path_;
  const char* format_;
  PlainSource file_;
  std::vector<char> block_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

class GzipSource : public CompressedSource {
 public:
  explicit GzipSource(const fs::path& path) : CompressedSource(path, "gzip") {
    ZEROPLAN_CHECK(inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK);
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

 private:
  size_t Decompress(std::span<char> out) override {
    const std::span<char> in = input();
    if (!within_ && any_ && in[0] == '\0') {  // padding behind the last member, as of tapes
      Take(1);
      return 0;
    }
    if (!within_ && any_) inflateReset(&stream_);
    any_ = within_ = true;
    stream_.next_in = reinterpret_cast<Bytef*>(in.data());
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), kBlockBytes));
    const uInt room = stream_.avail_out;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      Fail(stream_.msg != nullptr ? stream_.msg : "damaged");
    }
    within_ = result != Z_STREAM_END;
    Take(in.size() - stream_.avail_in);
    return room - stream_.avail_out;
  }

  z_stream stream_{};
  bool any_ = false;
};

class ZstdSource : public CompressedSource {
 public:
  explicit ZstdSource(const fs::path& path)
      : CompressedSource(path, "zstd"), stream_(ZSTD_createDStream()) {
    ZEROPLAN_CHECK(stream_ != nullptr);
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

  size_t Decompress(std::span<char> out) override {
    const std::span<char> in = input();
    ZSTD_inBuffer from = {in.data(), in.size(), 0};
    ZSTD_outBuffer to = {out.data(), out.size(), 0};
    const size_t left = ZSTD_decompressStream(stream_.get(), &to, &from);
    if (ZSTD_isError(left) != 0) Fail(ZSTD_getErrorName(left));
    within_ = left != 0;
    Take(from.pos);
    return to.pos;
  }

  std::unique_ptr<ZSTD_DStream, Free> stream_;
};

}  // namespace

std::string KindSuffix(const fs::path& path) { return LowerAscii(path.extension().string()); }

Compression CompressionOf(const fs::path& path) {
  const std::string suffix = KindSuffix(path);
  if (suffix == ".gz") return Compression::kGzip;
  return suffix == ".zst" ? Compression::kZstd : Compression::kNone;
}

bool ByteSource::ReadMore(size_t bytes, std::string* text) {
  while (text->size() < bytes) {
    ThrowIfInterrupted();
    const size_t had = text->size();
    text->resize(std::min(bytes, had + kBlockBytes));
    const size_t got = Read(std::span(text->data() + had, text->size() - had));
    text->resize(had + got);
    if (got == 0) return false;
  }
  return true;
}

std::unique_ptr<ByteSource> ByteSource::Open(const fs::path& path) {
  switch (CompressionOf(path)) {
    case Compression::kGzip:
      return std::make_unique<GzipSource>(path);
    case Compression::kZstd:
      return std::make_unique<ZstdSource>(path);
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainSource>(path);
}

namespace {

constexpr size_t kLineBlockBytes = size_t{1} << 20;

}  // namespace

LineReader::LineReader(const std::filesystem::path& path, uint64_t most_bytes)
    : path_(path),
      most_bytes_(most_bytes),
      bytes_(ByteSource::Open(path)),
      block_(kLineBlockBytes) {}

bool LineReader::Next(std::string* line) {
  line->clear();
  ++number_;
  for (bool any = false;;) {
    if (rest_.empty()) {
      rest_ = {block_.data(), bytes_->Read(block_)};
      if (rest_.empty()) return any;
    }
    any = true;
    const size_t end = rest_.find('\n');
    line->append(rest_.substr(0, end));
    if (line->size() > most_bytes_) {
      ThrowUsage("{}:{}: a line of more than {} MiB; a record is one line", path_.string(), number_,
                 most_bytes_ >> 20);
    }
    if (end != std::string_view::npos) {
      rest_.remove_prefix(end + 1);
      break;
    }
    rest_ = {};
  }
  if (line->ends_with('\r')) line->pop_back();
  return true;
}

}  // namespace zeroplan
