#include "model/tokens/scripts.h"

#include <string_view>

namespace mc::model {
namespace {

// The scripts of Unicode 14, by their short names; Han has those that count as it.
constexpr std::string_view kScripts[] = {
    "Zyyy", "Latn", "Grek", "Cyrl", "Armn", "Hebr", "Arab", "Syrc", "Thaa", "Deva", "Beng", "Guru",
    "Gujr", "Orya", "Taml", "Telu", "Knda", "Mlym", "Sinh", "Thai", "Laoo", "Tibt", "Mymr", "Geor",
    "Hang", "Ethi", "Cher", "Cans", "Ogam", "Runr", "Khmr", "Mong", "Bopo", "Yiii", "Ital", "Goth",
    "Dsrt", "Zinh", "Tglg", "Hano", "Buhd", "Tagb", "Limb", "Tale", "Linb", "Ugar", "Shaw", "Osma",
    "Cprt", "Brai", "Bugi", "Copt", "Talu", "Glag", "Tfng", "Sylo", "Xpeo", "Khar", "Bali", "Xsux",
    "Phnx", "Phag", "Nkoo", "Sund", "Lepc", "Olck", "Vaii", "Saur", "Kali", "Rjng", "Lyci", "Cari",
    "Lydi", "Cham", "Lana", "Tavt", "Avst", "Egyp", "Samr", "Lisu", "Bamu", "Java", "Mtei", "Armi",
    "Sarb", "Prti", "Phli", "Phlp", "Orkh", "Kthi", "Batk", "Brah", "Mand", "Cakm", "Merc", "Mero",
    "Plrd", "Shrd", "Sora", "Takr", "Aghb", "Bass", "Dupl", "Elba", "Gran", "Khoj", "Lina", "Mahj",
    "Mani", "Mend", "Modi", "Mroo", "Narb", "Nbat", "Palm", "Pauc", "Perm", "Phlp", "Sidd", "Sind",
    "Tirh", "Wara", "Ahom", "Hatr", "Hluw", "Hung", "Mult", "Sgnw", "Adlm", "Bhks", "Marc", "Newa",
    "Osge", "Tang", "Gonm", "Nshu", "Soyo", "Zanb", "Dogr", "Gong", "Maka", "Medf", "Rohg", "Sogd",
    "Sogo", "Elym", "Hmnp", "Nand", "Wcho", "Chrs", "Diak", "Kits", "Yezi", "Cpmn", "Ougr", "Tnsa",
    "Toto", "Vith", "Hmng"};

std::string run_of(const std::string& set) { return "[" + set + "][ \\p{Unknown}" + set + "]*"; }

}  // namespace

std::string script_pattern() {
  std::string out = run_of(R"(\p{sc:Hani}\p{sc:Hira}\p{sc:Kana}\x{30FC})");
  for (const std::string_view name : kScripts)
    out += "|" + run_of("\\p{sc:" + std::string(name) + "}");
  return out;
}

}  // namespace mc::model
