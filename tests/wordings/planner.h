// The prose that tests/planner assert on: change a wording here when a message changes.
#pragma once

namespace zeroplan::wording {

// advice/advice_test.cc
inline constexpr const char kTheAnswerStaysWithoutShard[] = "the answer stays without shard groups";

// advice/first_lines_test.cc
inline constexpr const char kTimesAsFastAsThese[] = " times as fast as these 8: ";

// estimate/fp8_products_test.cc
inline constexpr const char kNoPeakOfFp[] = "no peak of FP8";
inline constexpr const char kAgainstProductsInBfGpt[] = " % against products in bf16 (GPT-2 124M";
inline constexpr const char kTookUpToLessThan[] =
    "took up to 2 % less than predicted, five on an H100 1 to 7 % less";

// estimate/interrupted_cost_test.cc
inline constexpr const char kWhatSaveTakesIsNot[] = "what a save takes is not known";
inline constexpr const char kSuchRunHardlyGetsOn[] = "such a run hardly gets on";
inline constexpr const char kAndToRestartsOfMin[] =
    "and to restarts of 5.67 min, loading included: the run takes 3.2";
inline constexpr const char kAtGpuHour[] = " at 2.5 a GPU-hour";
inline constexpr const char kNoticeOfMayBeToo[] =
    "A notice of 30.0 s may be too short: the step that runs and a save of its own take 50.0 s, by "
    "prediction.";
inline constexpr const char kForWhichStepsWaitAnd[] =
    "for which steps wait 2.00 s and which is complete after 42.0 s.";
inline constexpr const char kNoticeOfMinIsEnough[] =
    "A notice of 2.00 min is enough: the step that runs, a save that is being written and a save "
    "of its own take 92.0 s, by prediction.";
inline constexpr const char kSuchAsDayOr[] = "such as 0.1/h, 2/day or 1/6h";
inline constexpr const char kWithItsUnitSuchAs[] = "with its unit, such as 30s";
inline constexpr const char kHasNoEffectWithout[] =
    "⟦notice⟧: 30s has no effect without ⟦interruptions⟧";

// estimate/light_states_test.cc
inline constexpr const char kIsNotMeasuredHere[] = "is not measured here";

// formats/config_format_test.cc
inline constexpr const char kSequencesOfTokensStepOn[] =
    "64 sequences of 2048 tokens a step on 8 GPUs";
inline constexpr const char kNoConfigSaysWeightDecay[] = "No config says weight_decay:";
inline constexpr const char kWarmupStepsMaxSteps[] = "warmup_steps, max_steps";
inline constexpr const char kAcceleratorGradientAccumulationStepsWhich[] =
    "Accelerator(gradient_accumulation_steps=2), which is 64";
inline constexpr const char kGradientAccumulationStepsParallelismConfig[] =
    "gradient_accumulation_steps=2, parallelism_config=ParallelismConfig(dp_shard_size=2, "
    "sp_size=4, "
    "sp_handler=DeepSpeedSequenceParallelConfig(sp_attn_implementation=\"flash_attention_2\"))";
inline constexpr const char kSequencesOverGpus[] = "sequences over GPUs";
inline constexpr const char kDataloaderBatchSizeAndAccelerator[] =
    "DataLoader(batch_size=4) and Accelerator(gradient_accumulation_steps=2), which is 128";
inline constexpr const char kAcceleratorGradientAccumulationStepsWhich2[] =
    "Accelerator(gradient_accumulation_steps=1), which";
inline constexpr const char kActivationCheckpointModeSelectiveSelective[] =
    "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"op\"\nearly_stop = "
    "true\n\n";
inline constexpr const char kNoModelOfTheShape[] = "no model of the shape of gpt2-xl";
inline constexpr const char kModelNameLlamaFlavorConverters[] =
    "\n[model]\nname = \"llama3\"\nflavor = \"8B\"\nconverters = "
    "[\"quantize.linear.float8\"]\n\n[quantize.linear.float8]\nfilter_fqns = "
    "[\"output\"]\nenable_fsdp_float8_all_gather = true\nprecompute_float8_dynamic_scale_for_fsdp "
    "= true\n";
inline constexpr const char kMixedPrecisionFpFpConfig[] =
    "mixed_precision: \"fp8\"\nfp8_config:\n  backend: AO\n  enable_fsdp_float8_all_gather: true\n "
    " pad_inner_dim: false\nfsdp_config:\n";
inline constexpr const char kMicsShardSize[] = "mics_shard_size";
inline constexpr const char kTorchtitanFsdpNbXffSequences[] =
    "# torchtitan 0.2.2, FSDP2: a\\nb\"c\\xff, 64 sequences";

// formats/launch_files_test.cc
inline constexpr const char kPlannedByZeroplan[] = "planned by zeroplan";
inline constexpr const char kSkypilotCatalogueHasNoName[] =
    "⟦for⟧: SkyPilot's catalogue has no name for NVIDIA GeForce RTX 4080";
inline constexpr const char kSkyLaunchRunYaml[] = "#   sky launch 'a run.yaml'\n";
inline constexpr const char kUseSpotTrue[] = "  use_spot: true\n";
inline constexpr const char kExecZeroplanTrainPlanPlan[] =
    "exec zeroplan train --plan /plan/plan.json --data data --save out --save-every auto "
    "--resume\n";
inline constexpr const char kExecTorchrunJobCompletionIndex[] =
    "exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank \"$JOB_COMPLETION_INDEX\"";
inline constexpr const char kModelHomeMeModel[] = "  ~/model: \"/home/me/a model\"\n";
inline constexpr const char kModelModelHome[] = " MODEL=${MODEL/#\\~/$HOME}\n";
inline constexpr const char kModelSharedModel[] = "  MODEL: /shared/model\n";
inline constexpr const char kPlanPlanJsonModelData[] =
    "--plan /plan/plan.json --model model --data data --epochs 3 --truncate --save out";

// formats/model_script_test.cc
inline constexpr const char kDtypeTorchFloatAttnImplementation[] =
    "dtype=torch.float32, attn_implementation=\"flash_attention_2\"";
inline constexpr const char kDistributedTypeMultiGpuMixed[] =
    "distributed_type: MULTI_GPU\nmixed_precision: \"bf16\"\n";
inline constexpr const char kDistributedTypeNo[] = "distributed_type: \"NO\"\n";
inline constexpr const char kOptimizerTorchOptimAdamwTrained[] =
    "optimizer = torch.optim.AdamW(trained, lr=LR, fused=True)\n";
inline constexpr const char kLoraLoraconfigLoraAlphaLora[] =
    "lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0, bias=\"none\",\n                  "
    "target_modules=\"all-linear\", task_type=\"CAUSAL_LM\")\nmodel = get_peft_model(model, "
    "lora)\n";
inline constexpr const char kLoraDropoutBias[] = "lora_dropout=0.05, bias";
inline constexpr const char kTargetModulesProjProjUse[] =
    "target_modules=[\"q_proj\", \"v_proj\"], use_rslora=True, task";
inline constexpr const char kGetPeftModelModelLora[] =
    "get_peft_model(model, lora, autocast_adapter_dtype=False)";
inline constexpr const char kProjProjBfloatSdpa[] =
    "--use_peft --lora_r 16 --lora_alpha 32 --lora_dropout 0.05 --lora_target_modules q_proj "
    "v_proj --use_rslora --no_gradient_checkpointing --dtype bfloat16 --attn_implementation sdpa";
inline constexpr const char kQuantizationConfigBitsandbytesconfigLoadIn[] =
    "    quantization_config=BitsAndBytesConfig(\n        load_in_4bit=True, "
    "bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=True,\n        "
    "bnb_4bit_compute_dtype=torch.bfloat16))\n";
inline constexpr const char kGetPeftModelModelLora2[] = "get_peft_model(model, lora)\n";
inline constexpr const char kModelPrepareModelForKbit[] =
    "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False,\n";
inline constexpr const char kTorchtuneWhatItLoadsIs[] =
    "⟦code⟧ torchtune (what it loads is of transformers: hf or liger)";
inline constexpr const char kForWhichItHasNo[] =
    "⟦optimizer_in_backward⟧, for which it has no setting";
inline constexpr const char kHfItTrainsItsOwn[] = "⟦code⟧ hf (it trains its own models)";
inline constexpr const char kImplementationForeachEarlyStepIn[] =
    "implementation = \"foreach\"\nearly_step_in_backward = true\n";
inline constexpr const char kAdamwBnbBitItHas[] =
    "⟦optim⟧ adamw_bnb_8bit (it has torch.optim.AdamW)";
inline constexpr const char kAdaptersTheTrainerThenShards[] =
    "adapters (the Trainer then shards the model as one group";

// formats/parse_back_test.cc
inline constexpr const char kXffIsNotUtf[] = "a\\xff: is not UTF-8";

// machines/machines_test.cc
inline constexpr const char kOrTheRunMakesNo[] = "or the run makes no progress";
inline constexpr const char kTheFastestGbSxmWith[] =
    "the fastest, h100-80gb-sxm with 8 GPUs, takes";
inline constexpr const char kNoBuiltInMachineHas[] = "⟦gpus⟧: no built-in machine has 9";
inline constexpr const char kHasNoEffectWithout2[] = "⟦deadline⟧: has no effect without ⟦tokens⟧";
inline constexpr const char kHasNoEffectWithout3[] = "⟦budget⟧: has no effect without ⟦tokens⟧";

// request/data_fields_test.cc
inline constexpr const char kDataDocumentsTokens[] = "Data: 100 documents, 10000 tokens.";
inline constexpr const char kAnEpochIsSequencesStep[] =
    "An epoch is 25 sequences, 5 a step: 5 steps. 10 steps are 2 epochs.";
inline constexpr const char kThisBuildReadsNoData[] = "⟦data⟧: this build reads no data";
inline constexpr const char kSaysHowIsTrainedOn[] = "⟦epochs⟧: says how ⟦data⟧ is trained on";

// request/largest_test.cc
inline constexpr const char kActivationsOfLayersOnCpu[] =
    "activations of 4 layers on cpu, GPU memory short by ";

// request/notes_test.cc
inline constexpr const char kTheirPredictedTimeIsGuess[] =
    "Their predicted time is a guess, measured on an H200 alone.";
inline constexpr const char kCallsOfCudnnKernelEach[] =
    "2 calls of cuDNN's kernel, each of 4 of 8 sequences";

// request/sequence_ranks_test.cc
inline constexpr const char kWhatTheConfigCostsIts[] =
    "What the config costs: its choice reaches 1.00K tokens/s";
inline constexpr const char kMicroBatchReaches[] = ", micro-batch 2) reaches";
inline constexpr const char kWithInPlaceOf[] =
    "with ⟦global_batch⟧ 16 in place of ⟦config⟧, ⟦micro_batch⟧, ⟦grad_accum⟧ ";
inline constexpr const char kUseMultipleOf[] = "use a multiple of 8";
inline constexpr const char kSequenceParallelSize[] = "\"sequence_parallel_size\": 4";
inline constexpr const char kHasQueryHeadsUseDivisor[] =
    "has 32 query heads; use a divisor of these";
inline constexpr const char kSmallestChangeThatFits[] =
    "smallest change that fits: ⟦sequence_ranks⟧ ";
inline constexpr const char kEachGpuHasSequencesOf[] =
    "Each GPU has sequences of its own; with ⟦sequence_ranks⟧ auto 1.";

// request/shard_groups_test.cc
inline constexpr const char kIsNotAllowedAtStage[] = "⟦shard_group⟧: 8 is not allowed at stage 0";
inline constexpr const char kGradientsIsNotAllowedAt[] =
    "⟦across_groups⟧: gradients is not allowed at stage 1";

// runtimes/adapters_test.cc
inline constexpr const char kIsOfModelsInBit[] =
    "⟦kbit⟧: is of models in 4 bit; give ⟦method⟧ qlora";
inline constexpr const char kInFpGradscalerUnscales[] =
    "⟦optimizer_in_backward⟧ in fp16: GradScaler unscales gradients behind the backward pass";
inline constexpr const char kComputeDtypeBfloatQuantStorage[] =
    "bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16))";
inline constexpr const char kPDataPDataTo[] =
    "if p.requires_grad: p.data = p.data.to(torch.bfloat16)";
inline constexpr const char kQuantStorageIsOfModels[] =
    "⟦quant_storage⟧ bf16: is of models in 4 bit; give ⟦method⟧ qlora";
inline constexpr const char kFloatingParametersAreCastTo[] =
    "⟦quant_storage⟧ fp16: floating parameters are cast to bf16";
inline constexpr const char kMixedPrecisionThenIsFp[] = "⟦quant_storage⟧ fp32: its mixed precision";
inline constexpr const char kIsModelledWithDdpAlone[] =
    "⟦kbit⟧: is modelled with ⟦runtime⟧ ddp alone";
inline constexpr const char kIsModelledOfTransformersCode[] =
    "⟦kbit⟧: is modelled of transformers' code";
inline constexpr const char kAdaptersUnderTorchCompile[] =
    "⟦compile⟧: adapters under torch.compile";
inline constexpr const char kModulesThatPeftTrainsWhole[] =
    "⟦lora_save⟧: modules that PEFT trains whole";

// runtimes/ddp_test.cc
inline constexpr const char kDdpKeepsEverythingOnThe[] = "DDP keeps everything on the GPU";

// runtimes/deepspeed_optimizer_test.cc
inline constexpr const char kZeroForceDsCpuOptimizer[] = "zero_force_ds_cpu_optimizer";
inline constexpr const char kBfMasterWeightsAndGrads[] = "bf16_master_weights_and_grads";

// runtimes/hybrid_test.cc
inline constexpr const char kShardGroupsAtStageAlone[] = "shard groups at stage 3 alone";
inline constexpr const char kGiveReplicateOrGradients[] = "give replicate or gradients";
inline constexpr const char kMicsHasNoOffload[] = "MiCS has no offload";
inline constexpr const char kMicsIgnoresZeroQuantizedWeights[] =
    "MiCS ignores zero_quantized_weights";
inline constexpr const char kReadGradientsAsFp[] = "read gradients as fp16";

// runtimes/long_sequences_test.cc
inline constexpr const char kUseOrDeepspeedOrFsdp[] = "use 1, or ⟦runtime⟧ deepspeed or fsdp2";
inline constexpr const char kFlashContextParallelTakesThe[] =
    "⟦attn⟧ flash: context_parallel takes the place of";
inline constexpr const char kUseMultipleOfAs[] = "use a multiple of 8 as ⟦seq_len⟧";
inline constexpr const char kIsModelledAtStageWithout[] =
    "is modelled at stage 3 without shard groups alone";
inline constexpr const char kEagerUlyssesOfDeepspeed[] = "⟦attn⟧ eager: Ulysses of DeepSpeed";
inline constexpr const char kTiledmlpSumsGradients[] = "⟦tiled_mlp⟧: TiledMLP sums gradients";
inline constexpr const char kWhichTorchtuneHasNot[] = "which ⟦code⟧ torchtune has not";
inline constexpr const char kMlpsWithSwigluAndGpt[] = "MLPs with SwiGLU, and gpt2 has others";

// runtimes/made_up_runtime_test.cc
inline constexpr const char kGptUnderMadeUp[] = "gpt2 under made-up 1.0";
inline constexpr const char kNobodyHasMeasuredMadeup[] = "Nobody has measured MadeUp.";
inline constexpr const char kMadeUpAmple[] = ",made-up 1.0,ample,";
inline constexpr const char kChosenForMadeupStageMicro[] =
    "Chosen for MadeUp: stage 0, micro-batch 4";

// runtimes/own_margin_test.cc
inline constexpr const char kWithTheBuiltInProfile[] =
    "With the built-in profile of an H200, 50 random runs";
inline constexpr const char kZeroplanHwMeasureMadeOn[] =
    "'zeroplan hw measure' made on the same machine";
inline constexpr const char kWithTheBuiltInProfile2[] = "With the built-in profile of an H200";
inline constexpr const char kSixRunsOnAnotherTook[] = "six runs on another H100 took 1 to 7 %";
inline constexpr const char kNotPageLocked[] = "not page-locked";
inline constexpr const char kTakenOverFromAn[] = "taken over from an H200";
inline constexpr const char kAcrossNodesItWasNot[] = "Across nodes it was not measured at all";
inline constexpr const char kNetworkReachedInProfileSays[] =
    "network.reached in a profile says what yours do";
inline constexpr const char kTheTimeRestsMostOn[] =
    "The time rests most on what the network reaches, then rates of kernels";
inline constexpr const char kTheTimeRestsMostOn2[] =
    "The time rests most on rates of kernels taken over from an H200, then what the network "
    "reaches, then GPUs that differ by 2.5 % in speed";

// runtimes/planned/planned_models_test.cc
inline constexpr const char kModelTypeGemmaIsNot[] =
    "model_type: \"gemma2\" is not allowed; use \"gpt2\"";
inline constexpr const char kZeroplanPlanAndEstimateTake[] =
    "'zeroplan plan' and 'estimate' take it with ⟦runtime⟧ deepspeed, fsdp2 or ddp";
inline constexpr const char kGetTheSafetensorsBesideIt[] = "get the safetensors beside it";
inline constexpr const char kUnheardOfIsNotKnown[] = "unheard_of is not known";
inline constexpr const char kParametersOfParts[] = "4.82K parameters of parts";
inline constexpr const char kLayerHasOtherTensors[] = "layer 1 has other tensors";
inline constexpr const char kItsLayersHaveNoMlp[] = "its layers have no mlp.gate_proj";
inline constexpr const char kHiddenSizeIsMissing[] = "hidden_size: is missing";
inline constexpr const char kBytesItsTensorsAndHeader[] = "bytes, its tensors and header";
inline constexpr const char kItsHeaderIsNoJson[] = "its header is no JSON object";
inline constexpr const char kShapeIsNotAllowed[] = ": a: shape: [...] is not allowed";
inline constexpr const char kDataOffsetsAreNotThe[] =
    ": a: data_offsets: [...] are not the 8 bytes of its shape";
inline constexpr const char kDtypeIsOfQuantizedWeights[] = "dtype: U8 is of quantized weights";
inline constexpr const char kNumHiddenLayersIsNot[] = "num_hidden_layers: 100000 is not allowed";
inline constexpr const char kNumExpertsPerTokIs[] =
    "num_experts_per_tok: 9 is not allowed; use at most";
inline constexpr const char kNumLocalExpertsIsNot[] =
    ": num_local_experts: 2147483647 is not allowed";
inline constexpr const char kUseWholeNumberFromTo[] = "use a whole number from 1 to 4096";
inline constexpr const char kIntermediateSizeIsNotAllowed[] =
    "intermediate_size: 2147483647 is not allowed";
inline constexpr const char kHiddenSizeComesWithThe[] =
    "hidden_size: 1048576 comes with the other sizes to 2.8e+19 parameters, and at most 1e+15 are "
    "planned; set all as the model was trained with";
inline constexpr const char kAreNotOrForEach[] = "are not 2 or 4 for each of the 332256 parameters";
inline constexpr const char kWeightMapLostIsNot[] = "weight_map: lost: is not in b.safetensors";
inline constexpr const char kWeightMapLostSafetensorsIs[] =
    "weight_map: lost: \"../b.safetensors\" is not allowed";
inline constexpr const char kWeightMapIsMissing[] = "weight_map: is missing";

// runtimes/torch_float8_test.cc
inline constexpr const char kItHasNoTrainingIn[] = "it has no training in 8 bits of its own";
inline constexpr const char kGiveLayersOrAll[] = "give ⟦compile⟧ layers or all";
inline constexpr const char kNotModelledWithLiger[] = "not modelled with ⟦code⟧ liger";
inline constexpr const char kTokensAreNoMultipleOf[] = "2047 tokens are no multiple of 16";
inline constexpr const char kLayersWithSwigluAndRotary[] =
    "layers with SwiGLU and rotary positions";
inline constexpr const char kFsdpAloneGathersInBits[] = "FSDP2 alone gathers in 8 bits";
inline constexpr const char kHasNoEffectWithoutFp[] = "has no effect without ⟦matmul_dtype⟧ fp8";
inline constexpr const char kGiveFsdpOrDdpTorchao[] = "give ⟦runtime⟧ fsdp2 or ddp (torchao)";
inline constexpr const char kIsOfZeroplanOwnProducts[] =
    "⟦fp8_recipe⟧: is of zeroplan's own products";

// runtimes/torch_offload_test.cc
inline constexpr const char kFailsOnDtensors[] = "fails on DTensors";

// runtimes/torch_phases_test.cc
inline constexpr const char kStageGatherBitWeightsOn[] =
    "stage3_gather_16bit_weights_on_model_save";
inline constexpr const char kPerDeviceEvalBatchSize[] = "per_device_eval_batch_size 8";
inline constexpr const char kLoadingHostMemoryProcessesNeed[] =
    "loading: host memory: 8 processes need 51.1 GB of 40.0 GB";
inline constexpr const char kWithBfWeightsInBf[] =
    "with ⟦param_dtype⟧ bf16, weights in bf16 without it it fits";
inline constexpr const char kButNotSaving[] = "but not saving";
inline constexpr const char kButNotEvaluation[] = "but not evaluation";
inline constexpr const char kItsStepsFitButNot[] =
    "Its steps fit, but not evaluation: GPU memory: tensors and context need";
inline constexpr const char kWithPerDeviceEvalBatch[] = "with per_device_eval_batch_size 1 it fits";
inline constexpr const char kPhasesAroundLoading[] = "\"phases_around\": {\n        \"loading\": {";
inline constexpr const char kWhyNotEvaluationGpuMemory[] = "\"why_not\": \"evaluation: GPU memory";
inline constexpr const char kThatDoesNotFit[] = "That does not fit.";
inline constexpr const char kWithShardedStateDict[] = "With SHARDED_STATE_DICT: ";

// why/run_log_test.cc
inline constexpr const char kReduceBucketSize[] = "\"reduce_bucket_size\": 4.194304e+06";

// why/why_phases_test.cc
inline constexpr const char kGibCpuVirtualMemoryLine[] =
    "⟦host_memory⟧ 100.0GiB (CPU Virtual Memory, line 4)";
inline constexpr const char kSmallerModelOrHostsWith[] =
    "a smaller model or hosts with more memory do.";
inline constexpr const char kSequencesLogitsAndTheirLoss[] =
    "2 sequences' logits and their loss (per_device_eval_batch_size 2). With "
    "per_device_eval_batch_size 1: ";
inline constexpr const char kTheBatchSizeIsThe[] =
    "The batch size is the log's (--per_device_eval_batch_size 2, line 1).";
inline constexpr const char kSequencesLogitsAndTheirLoss2[] =
    "16 sequences' logits and their loss (per_device_eval_batch_size 16)";
inline constexpr const char kTheBatchSizeIsThe2[] =
    "The batch size is the log's (Batch size =, line 8).";
inline constexpr const char kSequenceLogitsAndTheirLoss[] =
    "1 sequence's logits and their loss (per_device_eval_batch_size 1).";
inline constexpr const char kSequencesLogitsAndTheirLoss3[] =
    "8 sequences' logits and their loss (per_device_eval_batch_size 8, the Trainer's default). "
    "With per_device_eval_batch_size 1: ";

// why/why_test.cc
inline constexpr const char kPerDeviceTrainBatchSize[] = "per_device_train_batch_size";
inline constexpr const char kRanOutOfGpuMemory[] =
    "ran out of GPU memory in the backward pass (line 63,";
inline constexpr const char kAllocatedAfterInitialisation[] = "allocated after initialisation";
inline constexpr const char kGibWereWanted[] = "3.91 GiB were wanted";
inline constexpr const char kTheLogHasDataModels[] =
    "the log has /data/models/llama, which is not here";
inline constexpr const char kTheZeroStageOr[] = "⟦stage⟧, the ZeRO stage (or ⟦config⟧";
inline constexpr const char kNoChangeWasFound[] = "No change was found";
inline constexpr const char kLineLionBitIsNot[] =
    "line 1: --optim lion_8bit is not predicted; AdamW is taken.";
inline constexpr const char kOfGemmaNothingCanBe[] =
    "⟦freeze⟧: of gemma2 nothing can be frozen with ⟦runtime⟧ ddp; leave it out";
inline constexpr const char kTokensOfImagesAreMore[] =
    "⟦image_tokens⟧: 1024 tokens of images are more than the 64 of a sequence; use ⟦seq_len⟧ 1024 "
    "or more, or fewer ⟦image_tokens⟧";
inline constexpr const char kNoFailureIsInThe[] =
    "The log ends at step 10. It names no failure that is known";
inline constexpr const char kAnOptimizerStep[] = "an optimizer step";
inline constexpr const char kTrainLogModelConfigLine[] = "train.log (model config, line 2)";
inline constexpr const char kTheRankOfPeftAdapters[] = "⟦lora_rank⟧, the rank of PEFT's adapters";
inline constexpr const char kNeitherTheLogNorAn[] = "neither the log nor an option says ⟦hw⟧";
inline constexpr const char kItIsBinaryOrText[] = "it is binary, or text in UTF-16";
inline constexpr const char kNoSuchFileCannotBe[] = "/no/such/file: cannot be read";

}  // namespace zeroplan::wording
