#include "serve/frontend/admin_routes.h"

#include "base/json.h"
#include "serve/request/openai.h"

namespace mc::serve {
namespace {

struct Asked {
  std::string worker, role;
};

Result<Asked> parse_asked(const std::string& body) {
  Asked a;
  if (body.empty()) return a;
  MC_TRY(const Json json, parse_json(body));
  if (!json.is_object()) return fail(Code::kInvalid, "want a JSON object, or no body");
  for (const auto& [key, value] : json.items())
    if (key != "worker" && key != "role")
      return fail(Code::kInvalid, "'%s': want worker or role", escape(key).c_str());
  MC_TRY(a.worker, get_string_or(json, "worker", ""));
  MC_TRY(a.role, get_string_or(json, "role", ""));
  if (!a.role.empty() && a.role != "prefill" && a.role != "decode")
    return fail(Code::kInvalid, "role '%s', want prefill or decode", escape(a.role).c_str());
  return a;
}

void answer(const http::Exchange& x, int status, const std::string& text) {
  x.reply(status, "application/json", text + "\n");
}
void refuse(const http::Exchange& x, int status, const std::string& what) {
  answer(x, status, error_json({status, what, "", ""}));
}

}  // namespace

void scale_in(const http::Exchange& x, Conductor& conductor) {
  const auto asked = parse_asked(x.request().body);
  if (!asked) return refuse(x, 400, asked.error().what);
  const auto done = conductor.scale_in(asked->worker, asked->role);
  if (done)
    answer(x, 200, dump_json({{"worker", done->node}, {"role", done->role}}));
  else
    refuse(x, done.error().code == Code::kNotFound ? 404 : 409, done.error().what);
}

}  // namespace mc::serve
