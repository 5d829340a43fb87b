#include "planner/runtimes/planned_parts.h"

#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "planner/runtimes/torch_adapters.h"
#include "planner/runtimes/torch_based.h"

namespace zeroplan {
namespace {

// ---- transformers 5.24: models/gemma2, gemma3, phi3, mixtral, qwen3_moe; integrations/moe.py ----

constexpr CodePart kGemmaRmsNorm = {
    "a4e b4e -b c4e e4e o2e -e -i",
    "f4e -g h4e k4e -h -f -c W m4e n4e -m -k p4e q4e r4e s4e -r -q -p -a t4e -n -s d2e -t",
    "40e",
    "104e",
    10,
    17};
constexpr CodePart kGemmaRmsNormFp32 = {
    "a4e -a b4e o4e =i",
    "c4e e4e -c -g -b W f4e h4e -f -e k4e m4e n4e p4e -n -m -k -i d4e -h -p",
    "28e",
    "92e",
    7,
    14};
constexpr CodePart kBoundedEager = {
    "a2e b2e c2e e2s f2s -e h2s -f k2s -h m2s n2s -m p4s q4s -p r2s -n s2e o2e -s -i -j -l",
    "t2e -g u2e v2s -t -b -r w4s -v x4s -w -q y2s -x z2s -y A2s -z -k B2s -A C2s -B E2e d2e -C -a "
    "-c M2k -u D2k -E",
    "20e 4k 44s",
    "24e 4k 50s",
    14,
    14};
constexpr CodePart kBoundedEagerFp32 = {
    "a2e b2e c2e e2s f2s -e h2s -f k2s -h m2s n4s -m p4s q2s -n r2e o2e -r -i -j -l",
    "s2e -g t2e u2s -s -b -q v4s -u w4s -v -p x2s -w y2s -x z2s -y -k A2s -z B2s -A C2e d2e -B -a "
    "-c M2k -t D2k -C",
    "20e 4k 40s",
    "24e 4k 50s",
    13,
    14};
constexpr CodePart kBoundedLoss = {"a2e -i b2e -a c2e e4e f4e -e -c",
                                   "-g h4e k4e -h -f m2e -k n2e -m p2e -n -b d2e -p",
                                   "30e",
                                   "36e",
                                   9,
                                   7};
constexpr CodePart kGatedOfOne = {
    "a1e o1e =i", "b1e c1e -g -a e1e -b -i d2e -e -c", "5e", "13e", 2, 4};
constexpr CodePart kRotaryOfOne = {
    "a2q b1q c2q -b e2q -c f2q -a -e o2q -f h2k k1k m2k -k n2k -m p2k -h -n q2k -p =i O:q",
    "r2k s1k t2k -s u2k -r v2k -t -u w2k x2k -v -w y2q z1q A2q -z B2q -y C2q -A -B E2q F2q -C -E "
    "I2k -G J2k -I -x K2q -g L2q -K -F N2e -H P2k -J Q2e -P R2e -N -Q S2q -L T2e -S d2e -R -T",
    "24k 24q",
    "18e 44k 42q",
    12,
    25};
constexpr CodePart kRotaryOfOneFp32 = {
    "a4q b1q c2q -b e4q -c f4q -a -e h4q -f k4k m1k n2k -m p4k -n q4k -k -p r4k -q o2q s2k -h -r "
    "=i O:s",
    "t4k -G u4q -g v4k w2k -v x1k y2k -x z2k -w A2k -y -z B4k C2k -B -t E2k -A -C F4q I2q -F J1q "
    "K2q -J L2q -I N2q -K -L P4q Q2q -P -u R2q -N -Q S2k T2k -S -E U2q V2q -U -R X2e -H Y2k -T Z2e "
    "-Y b2e -X -Z c2q -V a2e -c d2e -b -a",
    "44k 44q",
    "18e 70k 68q",
    16,
    33};
constexpr CodePart kExperts = {
    "a2x b4x c4x -b e4c f8c h4c k8c m8c n8c p2h q4c r4c s4f t2f u2f v2h w4h x8c y8c -y z4h -w A4e "
    "o2e -k -r -z -A -a -e =i",
    "B4e -g C4h -B E4h F4h -E -C -x I4h J4h K2h -J L4c -I -F -q -v N2f -K -u W P2f Q2f -N -t R2f "
    "-Q -s S4f -R -P T2h -S -p W U4c V4c -U -L -m X2e Y2e -X -T -n Z4c b4c y4c w4c -y -b -Z k4c -w "
    "-V -h r4c -k z4x A4x -z -r -f a4x -A -c e2x -a g2e -e -i W d2e -Y -g",
    "12e 10f 20h 18x",
    "22e 22f 56h 30x",
    21,
    28};
constexpr CodePart kExpertsFp32 = {
    "a2e b2x c4x e4x -c f4c h8c k4c m8c n8c p8c q4h r4c s4c t8f u4f v4f w4h x4h y8c z8c -z A4h -x "
    "o4e -m -s -A -b -f -i",
    "B4h -g C4h E4h -C -B -y F4h I4h J4c -F -E -r -w K4f -I -v W L4f N4f -K -u P4f -N -t Q8f -P -L "
    "R4h -Q -q W S4c T4c -S -J -n U4e V4e -U -R -p X4c Y4c Z4c c4c -Z -Y -X z4c -c -T -k x4c -z "
    "m4x s4x -m -x -h A4x -s -e b2x -A f2e -b -a i4e -f W d4e -V -i",
    "14e 20f 24h 18x",
    "34e 44f 56h 30x",
    22,
    28};
constexpr CodePart kPlainExperts = {
    "a2x b4x c4x -b e4c f8c h2c -e k8c m8c n8c p2h q2c r4c s4f t2f u2f v2h w2h x8c y8c -y z2h -w "
    "o2e -k -r -z -a -h =i",
    "A2h -g B2h C2h -B -A -x E2h F2h I2c -E -C -q -v J2f -F -u W K2f L2f -J -t N2f -L -s P4f -N -K "
    "Q2h -P -p W R2c S2c -R -I -m T2e U2e -T -Q -n V4c -S X4x Y4x -X -V -f Z4x -Y -c b2x -Z e2e -b "
    "-i W d2e -U -e",
    "4e 10f 12h 18x",
    "14e 22f 28h 30x",
    18,
    20};
constexpr CodePart kPlainExpertsFp32 = {
    "a2e b2x c4x e4x -c f4c h8c k2c -f m8c n8c p8c q4h r2c s4c t8f u4f v4f w4h x4h y8c z8c -z A4h "
    "-x o4e -m -s -A -b -k -i",
    "B4h -g C4h E4h -C -B -y F4h I4h J4c -F K2c -J -E -r -w L4f -I -v W N4f P4f -L -u Q4f -P -t "
    "R8f -Q -N S4h -R -q W T2c U2c -T -K -n V4e X4e -V -S -p Y4c -U Z4x c4x -Z -Y -h f4x -c -e z2x "
    "-f x2e -z -a m4e -x W d4e -X -m",
    "14e 20f 24h 18x",
    "34e 44f 56h 30x",
    20,
    23};

// ---- transformers 4.57: models/qwen3_moe, mixtral; experts are linear modules, in a loop ----

// Masks of the experts' tokens, which are one of 8 bytes for each token, choice and expert, live
// within the forward pass.
constexpr CodePart kRouter = {"a2x b4x c4x -b e4c f8c h2c -e o2e -a =i",
                              "x4x y4x -x z4x -y -c S2x -z K2e -S T2e -K -D W d:T",
                              "2e 24x",
                              "6e 30x",
                              12,
                              6};
// CUDA's kernels read and write rows alone of what is indexed; a gradient that is scattered is
// written whole, and added to those of the other experts.
constexpr CodePart kOneExpert = {
    "a16c b2h c2f e2f f2f h2f k2h m2c n2h",
    "p2h -n q2h r2h s2c -q -p -m -k -s t2f -r -h W u2f v2f -t -f -e w2h -u W x2f -v -c y2h -x -b "
    "W z2h -w -y A2e B2e -A -z -a C2e -B -D D:C",
    "14h 10f",
    "12e 26h 18f",
    9,
    14};

// ---- the same, frozen below adapters ----

constexpr CodePart kFrozenRouter = {"a2x b4x c4x -b e4c f8c h2c -e o2e -a",
                                    "x4x y4x -x z4x -y -c S2x -z K2e -S T2e -K -D d:T",
                                    "2e 24x",
                                    "6e 30x",
                                    12,
                                    6};
constexpr CodePart kFrozenOneExpert = {
    "a16c b2h c2f e2f -b f2f h2f k2h -h m2c n2h",
    "p2h -n q2h r2h s2c -q -p -m -k -s t2f -r W u2f v2f -t -f -e w2h -u W x2f -v -c y2h -x W z2h "
    "-w -y A2e B2e -A -z -a C2e -B -D D:C",
    "14h 10f",
    "12e 26h 18f",
    9,
    14};

constexpr CodePart kFrozenGemmaRmsNorm = {
    "a4e b4e -b c4e e4e -c o2e -e -i",
    "f4e -g h4e -f k4e m4e -k -h n4e p4e q4e r4e -q -p -n -a s4e -m -r d2e -s",
    "40e",
    "88e",
    10,
    14};
constexpr CodePart kFrozenExperts = {
    "a2x b4x c4x -b e4c f8c h4c k8c m8c n8c p2h q4c r4c s4f t2f u2f v2h -u w4h x8c y8c -y z4h -w "
    "A4e o2e -k -p -r -z -A -a -e -i",
    "B4e -g C4h -B E4h F4h -E -C -x I4h J4h K2h -J L4c -I -F -q -v N2f -K P2f Q2f -N -t R2f -Q -s "
    "S4f -R -P T2h -S U4c V4c -U -L -m X2e Y2e -X -T -n Z4c b4c u4c y4c -u -b -Z w4c -y -V -h k4c "
    "-w p4x r4x -p -k -f z4x -r -c A2x -z a2e -A d2e -Y -a",
    "12e 10f 20h 18x",
    "22e 22f 56h 30x",
    21,
    28};
constexpr CodePart kFrozenPlainExperts = {
    "a2x b4x c4x -b e4c f8c h2c -e k8c m8c n8c p2h q2c r4c s4f t2f u2f v2h -u w2h x8c y8c -y z2h "
    "-w o2e -k -p -r -z -a -h -i",
    "A2h -g B2h C2h -B -A -x E2h F2h I2c -E -C -q -v J2f -F K2f L2f -J -t N2f -L -s P4f -N -K Q2h "
    "-P R2c S2c -R -I -m T2e U2e -T -Q -n V4c -S X4x Y4x -X -V -f Z4x -Y -c b2x -Z e2e -b d2e -U "
    "-e",
    "4e 10f 12h 18x",
    "14e 22f 28h 30x",
    18,
    20};

// Keys and values for every query head, the mask in 16 bit (aten/src/ATen/native/transformers/
// attention.cpp, sdpa_attention_forward of transformers), CUTLASS's kernels; not counted.
constexpr CodePart kMasked = {"a2e b2e f2m o2e c4n =i -j -l",
                              "d2e u2e v2e x4e y4n -x -y -g -i -a -b -f -o -c D2k -u M2k -v",
                              "8e 4k 3m",
                              "4e 4k",
                              4,
                              5};

constexpr PlannedParts kParts = {kGemmaRmsNorm, kRotaryOfOne, kGatedOfOne, kBoundedEager,
                                 kMasked,       kBoundedLoss, kExperts,    kPlainExperts,
                                 kRouter,       kOneExpert};
constexpr PlannedParts kPartsFp32 = {
    kGemmaRmsNorm, kRotaryOfOneFp32, kGatedOfOne,       kBoundedEagerFp32, kMasked,
    kBoundedLoss,  kExpertsFp32,     kPlainExpertsFp32, kRouter,           kOneExpert};
constexpr PlannedParts kPartsFrozen = {
    kFrozenGemmaRmsNorm, kRotaryOfOne,   kGatedOfOne,         kBoundedEager, kMasked,
    kBoundedLoss,        kFrozenExperts, kFrozenPlainExperts, kFrozenRouter, kFrozenOneExpert};

StyleCode Gemma(CodeStyle style, bool fp32_params, bool frozen = false) {
  StyleCode code = StyleCodeOf(style, fp32_params);
  if (style != CodeStyle::kHf) return code;  // Liger's kernels know Gemma's norms and gates
  code.head_norm = frozen ? kFrozenGemmaRmsNorm : kGemmaRmsNorm;
  code.rms_norm = fp32_params ? kGemmaRmsNormFp32 : code.head_norm;
  return code;
}

}  // namespace

const PlannedParts& PlannedPartsOf(bool fp32_params, bool frozen) {
  return frozen ? kPartsFrozen : fp32_params ? kPartsFp32 : kParts;
}

const StyleCode& PlannedStyle(CodeStyle style, bool fp32_params, const PlannedCode& code,
                              bool frozen) {
  if (!code.gemma_norms) {
    return frozen ? FrozenStyle(style, {}, /*autocast=*/false) : StyleCodeOf(style, fp32_params);
  }
  static const StyleCode adapted[] = {Gemma(CodeStyle::kHf, false, true),
                                      Gemma(CodeStyle::kLiger, false, true)};
  if (frozen) return adapted[style == CodeStyle::kLiger ? 1 : 0];
  static const StyleCode hf[] = {Gemma(CodeStyle::kHf, false), Gemma(CodeStyle::kHf, true)};
  static const StyleCode liger[] = {Gemma(CodeStyle::kLiger, false),
                                    Gemma(CodeStyle::kLiger, true)};
  return (style == CodeStyle::kLiger ? liger : hf)[fp32_params ? 1 : 0];
}

void AddExpertElements(const ModelSpec& spec, int64_t tokens, TorchElements* elements,
                       int64_t share) {
  const PlannedCode& code = *spec.family->planned();
  elements->c = (tokens * code.experts_per_token + share - 1) / share;
  elements->h = elements->c * spec.hidden;
  elements->f = elements->c * spec.ffn;
  elements->x = tokens * code.experts;
}

TowerBytes TowerBytesOf(const VisionTower& tower, bool autocast) {
  // Norms with fp32 copies; queries, keys and values once as one product made them and once turned;
  // windows' outputs, and all of them in a row.
  if (tower.rms_norms) return {30, 8, 8, 12, 0};
  // Queries, keys and values cast what the first norm made, the MLP what the second did.
  const int hidden = autocast ? 24 : 16, ends = autocast ? 6 : 4;
  return tower.quick_gelu ? TowerBytes{hidden, 6, 16, ends, 4} : TowerBytes{hidden, 4, 16, ends, 0};
}

void TorchBased::RefuseExperts(const TorchPlay& play) const {
  const ExpertModules experts = play.recipe.experts;
  if (experts == ExpertModules::kFused) return;
  const std::string_view name = ExpertModulesName(experts);
  const PlannedCode* code = play.model.family->planned();
  RefuseIf(code == nullptr || code->experts == 0,
           "⟦experts⟧ {} has no effect: {} has no experts; leave it out", name, play.model.name);
  RefuseIf(
      !code->had_modules,
      "⟦experts⟧ {}: transformers 4 has no linear modules for the experts of a {}, or not that "
      "type; leave it out",
      name, play.model.family->name());
  RefuseIf(
      experts == ExpertModules::kLeaf && !(reads_deepspeed_config() && play.setup.zero.stage == 3),
      "⟦experts⟧ leaf: leaf modules are of DeepSpeed's stage 3; give modules, or ⟦runtime⟧ "
      "deepspeed and ⟦stage⟧ 3");
  RefuseIf(
      !HasAdapters(play.model) && CastsTrained(play),
      "⟦experts⟧ {} is counted with parameters in 16 bit; give ⟦param_dtype⟧ bf16 or ⟦code⟧ hf",
      name);
}

}  // namespace zeroplan
