// The secret that all processes of a cluster share, or two of them while one is replaced. With it
// every control connection is encrypted and authenticated (CURVE). The server's key pair is derived
// from the secret, so a client that knows the server's public key has proved that it knows the
// secret. Without a key a server may listen on loopback only.
//
// Servers serve the first key; clients try both, the first one first. The file is read again when
// it changed: reload_cluster_key() is called by each Server, Client and SyncClient
// (docs/security.md, "To replace the key").
//
// Thread: any; use_cluster_key() and load_cluster_key() before the first socket.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace mc::rpc {

struct ClusterKey {  // one object for a secret, for the life of the process
  std::string secret;
  std::string server_secret, server_public;  // z85
};

struct ClusterKeys {
  const ClusterKey* first = nullptr;   // none: no key
  const ClusterKey* second = nullptr;  // none: one key
  bool has(const ClusterKey* key) const { return key == first || (second && key == second); }
  // The key to try after `key` was refused.
  const ClusterKey* other(const ClusterKey* key) const {
    return key == first && second != nullptr ? second : first;
  }
};

// The file is looked at so often; a change counts once it was seen twice.
inline constexpr Duration kKeyLook = std::chrono::milliseconds(250);

// Errors: kInvalid for a secret of fewer than 16 bytes.
Result<> use_cluster_key(const std::string& secret);
// One secret a line, two at most; an empty path: none. Errors: kDenied when others may read the
// file; kInvalid for a short secret, three of them, or the same one twice.
Result<> load_cluster_key(const std::string& path);
// Reads the loaded file again, if it changed. A file that cannot be used changes nothing, and the
// log says why, once.
void reload_cluster_key(Time now);
bool cluster_key_reloads();  // there is a file
ClusterKeys cluster_keys();

}  // namespace mc::rpc
