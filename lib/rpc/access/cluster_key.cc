#include "rpc/access/cluster_key.h"

#include <sys/stat.h>
#include <zmq.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/mutex.h"
#include "io/file.h"

namespace mc::rpc {
namespace {

constexpr size_t kSecretBytesMin = 16, kFileBytesMax = 4096;

// What changes with a file's content. A file that is not there has only zeros.
struct Stamp {
  dev_t device = 0;
  ino_t number = 0;
  off_t bytes = 0;
  mode_t mode = 0;
  timespec modified{}, changed{};
  bool operator==(const Stamp& o) const {
    const auto same = [](const timespec& a, const timespec& b) {
      return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
    };
    return device == o.device && number == o.number && bytes == o.bytes && mode == o.mode &&
           same(modified, o.modified) && same(changed, o.changed);
  }
};

Stamp stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino, info.st_size, info.st_mode, info.st_mtim, info.st_ctim};
}

// Readers take no lock: a child of a fork may use keys that another thread of its parent changed.
class KeyRing {
 public:
  Result<> use(const std::vector<std::string>& secrets) {
    Lock lock(mutex_);
    return use_now(secrets);
  }
  Result<> load(const std::string& path);
  void reload(Time now);
  bool reloads() const { return has_file_; }
  ClusterKeys keys() const { return *now_.load(std::memory_order_acquire); }

 private:
  Result<> use_now(const std::vector<std::string>& secrets) MC_REQUIRES(mutex_);
  Result<const ClusterKey*> key_of(const std::string& secret) MC_REQUIRES(mutex_);
  Result<> use_file(const std::vector<std::string>& secrets, const std::string& path)
      MC_REQUIRES(mutex_);
  void look() MC_REQUIRES(mutex_);

  Mutex mutex_;
  std::deque<ClusterKey> known_ MC_GUARDED_BY(mutex_);  // never shorter: they are pointed to
  std::deque<ClusterKeys> sets_ MC_GUARDED_BY(mutex_);
  std::string path_ MC_GUARDED_BY(mutex_), refused_ MC_GUARDED_BY(mutex_);  // why, last
  Stamp used_ MC_GUARDED_BY(mutex_), seen_ MC_GUARDED_BY(mutex_);
  const ClusterKeys none_{};
  std::atomic<const ClusterKeys*> now_{&none_};
  std::atomic<bool> has_file_{false}, looking_{false};
  std::atomic<Duration::rep> looked_{0};
};

KeyRing& ring() {
  static auto* ring = new KeyRing;  // never freed: sockets of other statics may outlive main
  return *ring;
}

Result<const ClusterKey*> KeyRing::key_of(const std::string& secret) {
  if (secret.size() < kSecretBytesMin)
    return fail(Code::kInvalid, "cluster key of %zu bytes: want %zu or more", secret.size(),
                kSecretBytesMin);
  for (const ClusterKey& key : known_)
    if (key.secret == secret) return &key;
  const Digest seed = hmac_sha256(secret, "mc control plane server key 1");
  std::array<char, 41> secret_key{}, public_key{};
  if (zmq_z85_encode(secret_key.data(), seed.data(), seed.size()) == nullptr ||
      zmq_curve_public(public_key.data(), secret_key.data()) != 0)
    return fail(Code::kUnsupported, "this libzmq has no CURVE: run without --cluster-key");
  known_.push_back({secret, secret_key.data(), public_key.data()});
  return &known_.back();
}

Result<> KeyRing::use_now(const std::vector<std::string>& secrets) {
  ClusterKeys keys;
  MC_TRY(keys.first, key_of(secrets.at(0)));
  if (secrets.size() > 2)
    return fail(Code::kInvalid, "%zu lines: want one secret a line, two at most", secrets.size());
  if (secrets.size() == 2) {
    MC_TRY(keys.second, key_of(secrets[1]));
    if (keys.second == keys.first) return fail(Code::kInvalid, "the same secret twice");
  }
  sets_.push_back(keys);
  now_.store(&sets_.back(), std::memory_order_release);
  return {};
}

// Spaces and newlines behind a secret do not count.
std::string trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return std::string(text);
}

std::vector<std::string> secrets_of(const std::string& file) {
  const std::string text = trimmed(file);
  std::vector<std::string> out;
  for (size_t from = 0;;) {
    const size_t to = text.find('\n', from);
    out.push_back(trimmed(std::string_view(text).substr(from, to - from)));
    if (to == std::string::npos) return out;
    from = to + 1;
  }
}

Result<std::vector<std::string>> secrets_in(const std::string& path) {
  auto text = io::read_secret_file(path, kFileBytesMax);
  if (!text) return fail(text.error().code, "--cluster-key: %s", text.error().what.c_str());
  return secrets_of(*text);
}

Result<> KeyRing::use_file(const std::vector<std::string>& secrets, const std::string& path) {
  if (auto used = use_now(secrets); !used)
    return fail(used.error().code, "--cluster-key %s: %s", path.c_str(), used.error().what.c_str());
  return {};
}

Result<> KeyRing::load(const std::string& path) {
  Lock lock(mutex_);
  const Stamp stamp = stamp_of(path);
  MC_TRY(const std::vector<std::string> secrets, secrets_in(path));
  MC_TRY_(use_file(secrets, path));
  path_ = path;
  used_ = seen_ = stamp;
  has_file_ = true;
  return {};
}

// One thread looks. No other waits for it, nor does a child of a fork for a thread it does not
// have.
void KeyRing::reload(Time now) {
  const Duration::rep at = now.time_since_epoch().count(), before = looked_.load();
  if (!has_file_ || (at >= before && at - before < kKeyLook.count())) return;
  if (looking_.exchange(true)) return;
  looked_ = at;
  {
    Lock lock(mutex_);
    look();
  }
  looking_ = false;
}

// A file that is being written changes from look to look: it is read when it has rested.
void KeyRing::look() {
  const Stamp stamp = stamp_of(path_);
  const bool rests = stamp == seen_;
  seen_ = stamp;
  if (!rests || stamp == used_) return;
  const auto secrets = secrets_in(path_);
  if (!(stamp_of(path_) == stamp)) return;  // it changed meanwhile, and is read once more
  const ClusterKeys before = keys();
  const auto used = secrets ? use_file(*secrets, path_) : Result<>(fail(secrets.error()));
  if (secrets) used_ = stamp;  // else it is read again: perhaps there were no descriptors
  if (!used) {
    const bool again = std::exchange(refused_, used.error().what) == used.error().what;
    if (!again) log_error("rpc", "%s: the keys stay as they were", refused_.c_str());
    return;
  }
  refused_.clear();
  const ClusterKeys after = keys();
  if (after.first != before.first || after.second != before.second)
    log_info("rpc", "--cluster-key %s was read again: %s; the first %s", path_.c_str(),
             after.second != nullptr ? "two keys" : "one key",
             after.first != before.first ? "is another one" : "is the same");
}

}  // namespace

Result<> use_cluster_key(const std::string& secret) { return ring().use({secret}); }
Result<> load_cluster_key(const std::string& path) {
  return path.empty() ? Result<>{} : ring().load(path);
}
void reload_cluster_key(Time now) { ring().reload(now); }
bool cluster_key_reloads() { return ring().reloads(); }
ClusterKeys cluster_keys() { return ring().keys(); }

}  // namespace mc::rpc
