// The prose that tests/core assert on: change a wording here when a message changes.
#pragma once

namespace zeroplan::wording {

// base/error_test.cc
inline constexpr const char kBytesAreLeftOut[] = "bytes are left out";

// config/config_document_test.cc
inline constexpr const char kLogConfigLine[] = "log (config, line 3):2:";

// config/data_facts_test.cc
inline constexpr const char kOffDocumentInSequenceOf[] =
    "⟦packing⟧ off: 1 document in 1 sequence of 64 an epoch, ";
inline constexpr const char kDocumentIsHeldBackFor[] = "; 1 document is held back for validation.";

// config/read_fp8_test.cc
inline constexpr const char kDeepspeedItselfDoesNotProducts[] =
    "DeepSpeed itself does not: products in FP8";
inline constexpr const char kAtComputeCapabilityAloneAnd[] =
    "at compute capability 9.0 alone, and it has 10.0";

// config/read_states_test.cc
inline constexpr const char kDeepspeedItselfDoesNotMaster[] =
    "DeepSpeed itself does not: master weights in 16 bit at stage";
inline constexpr const char kBfMasterWeightsAndGrads[] =
    "bf16_master_weights_and_grads: false contradicts ⟦master_weights⟧ 16bit";
inline constexpr const char kZeroplanMasterWeightsSplitIs[] =
    "_zeroplan.master_weights: split is not allowed: DeepSpeed has no master";
inline constexpr const char kZeroplanOptimizerStatesBitIs[] =
    "_zeroplan.optimizer_states: 8bit is not allowed: DeepSpeed has no optimizer states in 8 bit; "
    "use fp32, or bf16 with _zeroplan.master_weights 16bit";

// families/adapter_config_test.cc
inline constexpr const char kTrainOnInPeft[] = "train on in PEFT";
inline constexpr const char kAdapterConfigJsonTheKey[] =
    "adapter_config.json:3: r: the key is given twice, here and on line 2";
inline constexpr const char kTheKeyIsGivenTwice[] = "the key is given twice";

// families/no_model_test.cc
inline constexpr const char kIsAnEmptyFolderGet[] = "is an empty folder; get the model into it";
inline constexpr const char kHoldsModelGgufGgufWeights[] =
    "holds model-Q4_K_M.gguf: GGUF, weights for llama.cpp";
inline constexpr const char kHoldsPipelineOfDiffusers[] = "holds a pipeline of diffusers";
inline constexpr const char kHoldsTokenizerTokenizerJsonAnd[] =
    "holds a tokenizer (tokenizer.json) and no model; get the model's config.json and";
inline constexpr const char kHoldsPytorchModelBinWeights[] =
    "holds pytorch_model.bin, weights of PyTorch, and no config.json";
inline constexpr const char kHoldsModelSafetensorsAndNo[] =
    "holds model.safetensors and no config.json, which says the model's shape";
inline constexpr const char kAsItsMakersOwnCode[] =
    "as its makers' own code reads it (params.json)";
inline constexpr const char kHoldsCheckpointsOfRunOf[] =
    "holds checkpoints of a run of 'zeroplan train' that has not ended";
inline constexpr const char kMyFolderAnd[] = "my-folder and ⟦resume⟧";
inline constexpr const char kIsFolderOfCheckpointsOf[] =
    "is a folder of checkpoints of 'zeroplan train', not a model";
inline constexpr const char kIsCheckpointOfZeroplanTrain[] =
    "is a checkpoint of 'zeroplan train', not a model";
inline constexpr const char kMyFolderCheckpoint[] = "my-folder/checkpoint-500";
inline constexpr const char kHoldsCheckpointsOfDeepspeedNot[] =
    "holds checkpoints of DeepSpeed, not a model; its zero_to_fp32.py";
inline constexpr const char kIsFolderWithoutConfigJson[] =
    "is a folder without a config.json, so it holds no model";
inline constexpr const char kModelTypeUnheardOfIs[] =
    "model_type: \"unheard_of\" is not allowed; use \"gpt2\"";
inline constexpr const char kZeroplanTrainsToPlanFor[] =
    "zeroplan trains; to plan for a model of its size: ⟦params⟧ 133M ⟦family⟧ llama";

}  // namespace zeroplan::wording
