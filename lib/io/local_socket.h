// Unix sockets with names in the abstract space or at a path, and descriptors sent over them.
// Abstract names belong to one network namespace and leave nothing on disk.
//
// Thread: any.
#pragma once
#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/fd.h"

namespace mc::io {

inline constexpr size_t kLocalNameMax = 107;  // bytes

// 0, or an errno; ENAMETOOLONG for a longer name.
int bind_local(int socket, std::string_view name);
int connect_local(int socket, std::string_view name);

// Listens at a path that its owner alone may connect to (mode 0600). A socket that nobody listens
// on any more is replaced. Errors: kInvalid for a path that is too long or something else;
// kUnavailable when another process listens there.
Result<Fd> listen_at_path(const std::string& path, int backlog);

// Errors: kDenied for a peer of another user.
Result<> check_same_user(int socket);
// And for another process than that one. Of a socket that connected: the one that listened.
Result<> check_process(int socket, pid_t pid);

// Sends one message, with the descriptor `fd` unless it is negative. False: errno says why.
bool send_with_fd(int socket, std::span<const char> bytes, int fd, int flags);
struct WithFd {
  ssize_t bytes = -1;  // as of recv(2)
  Fd fd;               // closed on exec; empty: the message had none
};
WithFd receive_with_fd(int socket, std::span<char> into, int flags);

}  // namespace mc::io
