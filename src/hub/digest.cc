#include "hub/digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "core/check.h"
#include "core/file.h"

namespace coppice::hub {
namespace {

EVP_MD_CTX* Raw(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

void Digest::Free::operator()(void* context) const { EVP_MD_CTX_free(Raw(context)); }

Digest::Digest(Kind kind) : context_(EVP_MD_CTX_new()) {
  COPPICE_CHECK(context_ != nullptr);  // some hundred bytes
  COPPICE_CHECK(EVP_DigestInit_ex(Raw(context_.get()), kind == Kind::kSha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
}

Digest Digest::GitSha1(int64_t bytes) {
  Digest digest(Kind::kSha1);
  const std::string header = fmt::format("blob {}", bytes);
  digest.Add(std::as_bytes(std::span(header.c_str(), header.size() + 1)));  // the zero is part of it
  return digest;
}

void Digest::Add(std::span<const std::byte> bytes) {
  COPPICE_CHECK(EVP_DigestUpdate(Raw(context_.get()), bytes.data(), bytes.size()) == 1);
}

std::string Digest::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> value;
  unsigned int size = 0;
  COPPICE_CHECK(EVP_DigestFinal_ex(Raw(context_.get()), value.data(), &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", value[i]);
  return hex;
}

Status CheckFile(int fd, const std::string& path, const FileCheck& check) {
  COPPICE_DCHECK(!check.sha256.empty() || !check.git_sha1.empty());
  struct stat facts = {};
  if (fstat(fd, &facts) != 0) return SystemError("read", path);
  if (facts.st_size != check.bytes) return DataLoss(fmt::format("{} has {} bytes, expected {}", path, facts.st_size, check.bytes));
  const bool is_sha256 = !check.sha256.empty();
  Digest digest = is_sha256 ? Digest::Sha256() : Digest::GitSha1(check.bytes);
  std::vector<std::byte> buffer(1 << 20);
  for (int64_t at = 0; at < check.bytes;) {
    const ssize_t count = pread(fd, buffer.data(), buffer.size(), at);
    if (count < 0) return SystemError("read", path);
    if (count == 0) return DataLoss(path + " became shorter while it was read");
    digest.Add(std::span(buffer.data(), count));
    at += count;
  }
  const std::string found = digest.Hex(), &expected = is_sha256 ? check.sha256 : check.git_sha1;
  if (found == expected) return OkStatus();
  return DataLoss(fmt::format("{} has {} {}, expected {}", path, is_sha256 ? "sha256" : "git's sha1", found, expected));
}

bool IsFile(const std::string& path, const FileCheck& check) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.get() >= 0 && CheckFile(file.get(), path, check).ok();
}

}  // namespace coppice::hub
