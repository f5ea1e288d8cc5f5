// Unix sockets by a name in the abstract space, which is of one network namespace and leaves
// nothing on disk, and descriptors that are sent over them.
//
// Thread: any.
#pragma once
#include <span>
#include <string_view>

#include "base/result.h"
#include "io/fd.h"

namespace mc::io {

inline constexpr size_t kLocalNameMax = 107;  // bytes

// 0, or an errno; ENAMETOOLONG for a longer name.
int bind_local(int socket, std::string_view name);
int connect_local(int socket, std::string_view name);

// Errors: kDenied for a peer of another user.
Result<> check_same_user(int socket);

// One message, with a descriptor beside it unless `fd` is negative. False: errno says why.
bool send_with_fd(int socket, std::span<const char> bytes, int fd, int flags);
struct WithFd {
  ssize_t bytes = -1;  // as of recv(2)
  Fd fd;               // closed on exec; none: none came
};
WithFd receive_with_fd(int socket, std::span<char> into, int flags);

}  // namespace mc::io
