// mc-xfer copy: copies files and folders between nodes.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "base/metrics.h"
#include "cmd/mc-xfer/copy.h"
#include "cmd/mc-xfer/peer_name.h"
#include "cmd/mc-xfer/wait_note.h"
#include "p2p/filecopy/copier.h"
#include "p2p/filecopy/remote.h"
#include "p2p/filecopy/tree.h"

namespace mc::xfer {
namespace {
namespace fs = std::filesystem;

struct End {
  std::unique_ptr<p2p::filecopy::FileTree> place;
  p2p::filecopy::Remote* remote = nullptr;
  std::string path;    // in the place
  bool slash = false;  // a folder was meant: "models/", ".", or nothing
};

// "./a/b/" is "a/b", and a folder.
void tidy(std::string path, End& end) {
  while (path.starts_with("./")) path.erase(0, path.find_first_not_of('/', 1));
  end.slash = path.empty() || path == "." || path.ends_with('/');
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  end.path = path == "." ? "" : path;
}

Result<End> open_remote(const CopyOptions& o, Engine& engine, const Clock& clock,
                        const FilesEnd& at) {
  End end;
  tidy(at.path, end);
  const WaitNote note(o.shows(), at.control, o.timeout);
  MC_TRY_(check_peer_name(at.control, o.timeout));
  MC_TRY(auto remote,
         p2p::filecopy::Remote::open(engine, clock, at.control, o.parallel, o.timeout));
  end.remote = remote.get();
  end.place = std::move(remote);
  return end;
}

Result<End> open_local(const std::string& path, bool source) {
  End end;
  std::error_code error;
  fs::path full = fs::absolute(path, error).lexically_normal();
  end.slash = !full.has_filename();
  if (source) {
    full = fs::canonical(path, error);
    if (error) return fail(Code::kNotFound, "%s: %s", path.c_str(), error.message().c_str());
  } else if (end.slash) {
    full = full.parent_path();
  }
  // The existing folder, and the path to create below it.
  std::string below;
  fs::path base = full;
  while (base.has_relative_path() && !fs::is_directory(base, error)) {
    below = base.filename().string() + (below.empty() ? "" : "/" + below);
    base = base.parent_path();
  }
  MC_TRY(end.place, p2p::filecopy::Tree::open(base.string()));
  end.path = below;
  return end;
}

void show(uint64_t done, uint64_t total) {
  std::fprintf(stderr, "\r%s of %s (%.0f %%)   ", rounded_bytes_text(done).c_str(),
               rounded_bytes_text(total).c_str(),
               total == 0 ? 100. : 100. * static_cast<double>(done) / static_cast<double>(total));
}

Error resumable(Error e) {
  if (e.code != Code::kInvalid && e.code != Code::kNotFound && e.code != Code::kDenied)
    e.what += "; what arrived is kept: the same command goes on from there";
  return e;
}

void print(const p2p::filecopy::CopyReport& r, double seconds, const std::string& way, bool json) {
  if (json) {
    std::printf("%s\n", dump_json({{"files", r.files},
                                   {"folders", r.folders},
                                   {"skipped", r.skipped},
                                   {"bytes", r.bytes},
                                   {"kept", r.kept},
                                   {"seconds", seconds},
                                   {"transport", way}})
                            .c_str());
    return;
  }
  std::printf("%llu files, %s in %.3f s over %s", static_cast<unsigned long long>(r.files),
              rounded_bytes_text(r.bytes).c_str(), seconds, way.c_str());
  if (r.kept > 0) std::printf(", %s of it there before", rounded_bytes_text(r.kept).c_str());
  if (r.skipped > 0)
    std::printf(", %llu links and other special files skipped",
                static_cast<unsigned long long>(r.skipped));
  std::printf("\n");
}

// A file goes into a folder, under its own name. Errors: kInvalid where what is there is of the
// other kind.
Result<> find_room(const p2p::filecopy::TreeEntry& what, const End& source, End& target) {
  auto there = target.place->look(target.path);
  if (!what.folder && (target.slash || (there && there->folder))) {
    const std::string name = fs::path(source.path).filename().string();
    target.path = target.path.empty() ? name : target.path + "/" + name;
    there = target.place->look(target.path);
  }
  if (!there && there.error().code != Code::kNotFound) return fail(there.error());
  if (there && there->folder != what.folder)
    return fail(Code::kInvalid, "'%s' is a %s at the destination, and a %s at the source",
                target.path.c_str(), there->folder ? "folder" : "file",
                what.folder ? "folder" : "file");
  return {};
}

}  // namespace

Result<int> copy_files(CopyOptions& o, const Context& context, const FilesEnd& from,
                       const FilesEnd& to) {
  if (from.path == "-" || to.path == "-")
    return fail(Code::kInvalid, "'-' goes with a peer's memory, host:port/OFFSET, not with files");
  if (o.parallel == 0 || o.parallel > 64)
    return fail(Code::kInvalid, "--parallel %u: want 1 to 64", o.parallel);
  const SteadyClock clock;
  Metrics metrics;
  o.engine.node = "mc-xfer-copy-" + std::to_string(::getpid());
  MC_TRY(auto engine, Engine::open(clock, o.engine, metrics));
  const Time start = clock.now();
  MC_TRY(End source,
         from.control.empty() ? open_local(from.path, true) : open_remote(o, *engine, clock, from));
  MC_TRY(End target,
         to.control.empty() ? open_local(to.path, false) : open_remote(o, *engine, clock, to));
  MC_TRY(const p2p::filecopy::TreeEntry what, source.place->look(source.path));
  MC_TRY_(find_room(what, source, target));
  size_t threads = o.parallel;
  for (const End* end : {&source, &target})
    if (end->remote != nullptr) threads = std::min(threads, end->remote->lanes());
  MC_TRY(const Memory memory, engine->allocate(threads * p2p::filecopy::kPieceBytes, false));
  std::vector<std::span<std::byte>> buffers;
  for (size_t i = 0; i < threads; ++i)
    buffers.push_back(
        memory.bytes().subspan(i * p2p::filecopy::kPieceBytes, p2p::filecopy::kPieceBytes));
  p2p::filecopy::Copier::Config config;
  const bool shown = o.shows();
  if (shown) config.progress = show;
  p2p::filecopy::Copier copier(*source.place, *target.place, std::move(buffers), std::move(config));
  const auto report = copier.run(source.path, target.path);
  if (shown) std::fprintf(stderr, "\r\033[K");
  if (!report) return fail(resumable(report.error()));
  const p2p::filecopy::Remote& peer = source.remote != nullptr ? *source.remote : *target.remote;
  print(*report, to_seconds(clock.now() - start), engine->transport_of(peer.segment()),
        context.json);
  return 0;
}

}  // namespace mc::xfer
