// The prose that tests/cli assert on: change a wording here when a message changes.
#pragma once

namespace zeroplan::wording {

// adapters_test.cc
inline constexpr const char kLoraRankAlphaDropoutOn[] =
    "LoRA: rank 4, alpha 8, dropout 0.1, on c_attn, mlp.c_proj";
inline constexpr const char kQloraRankAlphaOnAttn[] =
    "QLoRA: rank 4, alpha 8, on c_attn, c_proj, c_fc: ";
inline constexpr const char kBaseInNfTrue[] = "base in NF4 true";
inline constexpr const char kLoraRankAlphaOnAttn[] =
    "LoRA: rank 4, alpha 8, on c_attn@1:2/5,c_proj:3,mlp.c_fc@0: ";
inline constexpr const char kAdaptersOfSomeLayersAlone[] =
    "--lora-targets: adapters of some layers alone";
inline constexpr const char kLoraFitsLora[] = "LoRA fits (--method lora)";

// async_save_test.cc
inline constexpr const char kSavesWrittenBesideTheSteps[] =
    "Saves: written beside the steps, from a copy of the states of ";
inline constexpr const char kStepWrittenIn[] = "step-00000010  (written in ";
inline constexpr const char kBesideTheStepsWhichStood[] =
    " beside the steps, which stood still for ";
inline constexpr const char kOnHasNoEffect[] = "--async-save: on has no effect";
inline constexpr const char kSavesStepsWaitForThem[] =
    "Saves: steps wait for them, as a copy of the states, ";
inline constexpr const char kDoesNotFitHereAuto[] = "does not fit here (--async-save auto)";
inline constexpr const char kHostMemoryShortBy[] = "host memory short by ";
inline constexpr const char kOffSoThatStepsWait[] =
    "--async-save off, so that steps wait for saves, fits with ";
inline constexpr const char kSavesWrittenBesideTheSteps2[] =
    "Saves: written beside the steps, from a copy of";
inline constexpr const char kAreCopyOfTheStates[] = "are a copy of the states, from which";
inline constexpr const char kSavesStepsWaitForThem2[] = "Saves: steps wait for them, as a copy of";
inline constexpr const char kOffIsNotAllowed[] = "--async-save: off is not allowed";
inline constexpr const char kWasPlannedWithoutTheMemory[] =
    "was planned without the memory of a copy to save from";

// command_files_test.cc
inline constexpr const char kRunDeepspeedJsonIsThere[] =
    "run.deepspeed.json: is there already and is not a config";
inline constexpr const char kHoldsTheMetricsOfAn[] =
    "holds the metrics of an earlier run; continue that one with --resume";

// config_test.cc
inline constexpr const char kDeepspeedItselfDoesNotRatio[] =
    "DeepSpeed itself does not: ratio 0.5 below stage 3";
inline constexpr const char kSegmentsOfLayers[] = "segments of 2 layers";
inline constexpr const char kNoErrorsWarningsGpus[] = "no errors, 2 warnings, 8 GPUs";
inline constexpr const char kMyRunIsNotKnown[] = ":3: my_run: is not a known key; remove it";
inline constexpr const char kNoErrorsWarningGpus[] = "no errors, 1 warning, 8 GPUs";
inline constexpr const char kStdinNoErrors[] = "stdin: no errors, ";
inline constexpr const char kStdinZeroOptimizationSatgeIs[] =
    "stdin:1: zero_optimization.satge: is not a known key";
inline constexpr const char kZeroOptimizationSatgeIsNot[] =
    ":1: zero_optimization.satge: is not a known key; did you mean 'stage'?";
inline constexpr const char kFpEnabledMaybeIsNot[] = ":2: fp16.enabled: \"maybe\" is not allowed";
inline constexpr const char kCommentIsNoJson[] = ":1:26: a comment is no JSON";
inline constexpr const char kZeroplanDoesNotDoThis[] =
    "zeroplan does not do this, DeepSpeed does: \"Lamb\" is not supported";
inline constexpr const char kNoErrorsForDeepspeed[] = "no errors for deepspeed, ";
inline constexpr const char kDeepspeedDoesNotRunThis[] =
    "DeepSpeed does not run this: ratio 0.5 below stage 3";
inline constexpr const char kDeepspeedItselfDoesNot[] = "DeepSpeed itself does not";
inline constexpr const char kOptimizerParamsBetas[] = "optimizer.params.betas";
inline constexpr const char kDoesNotGoWithZero[] = "does not go with ZeRO in DeepSpeed";
inline constexpr const char kZeroplanDoesNotDoThis2[] =
    "zeroplan does not do this, DeepSpeed does: cycle_momentum";
inline constexpr const char kZeroplanDoesNotDoThis3[] = "zeroplan does not do this, DeepSpeed does";
inline constexpr const char kTrainMicroBatchSizePer[] =
    "train_micro_batch_size_per_gpu: \"auto\" is for transformers' Trainer";

// data_test.cc
inline constexpr const char kTokensOfBitsDocument[] = "tokens of 16 bits, 1 document, ";
inline constexpr const char kBeginOfText[] = "<|begin_of_text|>";
inline constexpr const char kTokensBinMadeWithAnother[] = "tokens.bin: made with another tokenizer";
inline constexpr const char kItIsAnotherModel[] = "it is another model's";
inline constexpr const char kChatsJsonlBytesAreTokens[] =
    "chats.jsonl: bytes are tokens without --tokenizer, so its records would be taken";
inline constexpr const char kCountInTheLossDocuments[] = " count in the loss), 40 documents";
inline constexpr const char kImStartUserHiIm[] = "<|im_start|>user\nHi<|im_end|>\n";
inline constexpr const char kEachOfThe[] = "--seq-len 4: each of the ";
inline constexpr const char kIsCutOffBeforeAnything[] =
    "is cut off before anything of it counts in the loss";
inline constexpr const char kCountInTheLossDocuments2[] = "count in the loss), 40 documents, by ";
inline constexpr const char kThereAreNoRecordsOr[] = "--train-on: there are no records or texts";
inline constexpr const char kChatsJsonlMessagesIsMissing[] = "chats.jsonl:41: messages is missing";
inline constexpr const char kWarningRecordsWereLeftOut[] =
    "warning: 2 records were left out (--skip-bad 2).";
inline constexpr const char kTxtByteIsNoUtf[] = "b.txt: 1 byte is no UTF-8 and counts as U+FFFD.";
inline constexpr const char kTheFirstRecordWhatCounts[] =
    "The first record, what counts in the loss in [[ ]]:\n<|begin_of_text|>Say it[[again and "
    "again<|eot_id|>]]";
inline constexpr const char kNoValidationPartHoldsBack[] =
    "no validation part: --data-repeats holds back none; --validation-data";
inline constexpr const char kTooLittleData[] = "too little data";

// doctor_hosts_test.cc
inline constexpr const char kAwayDoesNotAnswer[] = "--hosts: away does not answer";
inline constexpr const char kOfHostsAnswer[] = "1 of 4 hosts answer.";
inline constexpr const char kOldDoesNotAnswerIts[] =
    "old does not answer: its zeroplan does not know doctor-agent";
inline constexpr const char kOddDoesNotAnswerIts[] =
    "odd does not answer: its zeroplan answers in another way";
inline constexpr const char kNotTriedFewerThanTwo[] = "not tried: fewer than two hosts answer";
inline constexpr const char kLocalhostDoesNotAnswerNowhere[] =
    "localhost does not answer: /nowhere/at/all/zeroplan cannot be run there";
inline constexpr const char kDoesNotAnswerNowhereSsh[] = "a does not answer: /nowhere/ssh";
inline constexpr const char kZpaDoesNotReachZpb[] =
    "10.77.0.1 (zpa, 10.77.0.1) does not reach 10.77.0.2 (zpb, 10.77.0.2): ";
inline constexpr const char kPortNoAnswerWithin[] = "port 29500: no answer within 2 s";
inline constexpr const char kHostsAndAllReachOne[] = "3 hosts, and all reach one another.";
inline constexpr const char kNodeEthGb[] = "node1  eth0       25 Gb/s  1500";
inline constexpr const char kNodeHasFastOfGb[] = "node2 has fast of 200 Gb/s";
inline constexpr const char kPortOfNodeWasNot[] =
    "port 29500 of node2 was not tried: Address already in use";

// doctor_test.cc
inline constexpr const char kTrainingIsPossibleHereOn[] = "Training is possible here on";
inline constexpr const char kNotAskedZeroplanNoDetect[] = "not asked: ZEROPLAN_NO_DETECT is set";
inline constexpr const char kMayNotBeWrittenRead[] = "may not be written (Read-only file system)";
inline constexpr const char kPinsGbInEachHost[] =
    "pins 40.0 GB in each host, 20.0 GB for each of 2 ranks";
inline constexpr const char kOnlyMbCanBeLocked[] = "only 8.00 MB can be locked";
inline constexpr const char kTheDriverPageLocksGb[] =
    "the driver page-locks 8.00 GB, then says: out of memory";
inline constexpr const char kTheDriverPageLocksAll[] = "the driver page-locks all of them";
inline constexpr const char kPageLockedGbOfThem[] =
    "page-locked 9.00 GB of them in the time it was given";

// estimate_test.cc
inline constexpr const char kOffCpuoffloadpolicyIsModelledWith[] =
    "--pin-memory off: CPUOffloadPolicy is modelled with page-locked memory";
inline constexpr const char kCpuProdSel[] = " cpu:3 prod:5+sel ";
inline constexpr const char kProductsNoneCpu[] = ",products,0,5,none,cpu,0,";
inline constexpr const char kStagesGpuMemoryShortBy[] = "\n  stages 0-2: GPU memory short by";
inline constexpr const char kBfGradientsOfMicroSteps[] =
    "--grad-accum-dtype bf16 (gradients of 4 micro-steps";

// event_file_test.cc
inline constexpr const char kContinueThatWithOrChoose[] =
    "continue that with --resume or choose another folder";

// extremes_test.cc
inline constexpr const char kOutOfHostMemory[] = "out of host memory";

// fp8_test.cc
inline constexpr const char kLinearsInFpForwardBackward[] =
    "linears in FP8, forward, backward and in evaluation (a scale a tensor, gradients e4m3); "
    "embedding, head, norms, attention and generation in bf16";
inline constexpr const char kOfRunsWithProductsIn[] = "Of runs with products in FP8";
inline constexpr const char kBfFpProductsMicroBatch[] = "bf16, FP8 products, micro-batch";
inline constexpr const char kProductsAllInBfNone[] = "Products: all in bf16, none in FP8";
inline constexpr const char kOptimizerStatesMatmulDtypeFp[] =
    "optimizer_states,matmul_dtype,fp8_recipe,fp8_least_side,";
inline constexpr const char kFpFpFpTensor[] = ",fp32,fp32,fp8,tensor,0,";
inline constexpr const char kZeroplanFpEnabledTrueHas[] =
    "_zeroplan.fp8.enabled: true has no effect: no linear of gpt2 has sides that are multiples of "
    "16 and at least 1024 (least_side); use false";
inline constexpr const char kFpIsNotAllowedWith[] = "fp8 is not allowed with --method qlora";
inline constexpr const char kLinearsInFp[] = "linears in FP8";
inline constexpr const char kBfIsNotAllowedWith[] =
    "--matmul-dtype: bf16 is not allowed with --plan";
inline constexpr const char kProductsThoseOfTheLayers[] =
    "Products: those of the layers' linears in FP8";
inline constexpr const char kProductsInFpScaleTensor[] =
    "products: in FP8 (a scale a tensor, gradients e4m3) in the checkpoint, in the parameters' "
    "dtype from here on";

// generate_test.cc
inline constexpr const char kWasMadeWithSeed[] = "was made with seed 0";
inline constexpr const char kDeviceTheCpuInFp[] = "device: the CPU, in fp32";
inline constexpr const char kDeviceTheCpuInBf[] = "device: the CPU, in bf16";
inline constexpr const char kSaysHowConversationBeginsAdd[] =
    "--system: says how a conversation begins; add --chat";
inline constexpr const char kIsNotAllowedUseNumber[] =
    "--top-p: 0 is not allowed; use a number above 0, up to 1";
inline constexpr const char kStopsGenerationConfigJsonOf[] =
    "Stops: generation_config.json of what is saved ends texts at <|im_end|>";
inline constexpr const char kTokensTheFirst[] = "30 tokens: the first";

// generator_fit_test.cc
inline constexpr const char kNoShorterFitsUseLarger[] =
    "; no shorter --context fits; use a larger GPU, or --backend cpu";

// gloo/train_processes_test.cc
inline constexpr const char kSavedContinueWith[] = "saved, continue with --resume";

// host_fit_test.cc
inline constexpr const char kSelectiveFitsWith[] = "--checkpointing selective fits with ";
inline constexpr const char kPlanAgainWithSelectiveWhich[] =
    "; plan again with --checkpointing selective, which fits with ";
inline constexpr const char kDsJsonFitsWith[] = "; ds.json fits with ";
inline constexpr const char kIfChangedToStageSelective[] =
    " if changed to stage 2, selective recompute and micro-batch 8";
inline constexpr const char kNoSmallerChoiceFitsPlan[] =
    "; no smaller choice fits; plan again for fewer ranks (--gpus)";
inline constexpr const char kNoSmallerChoiceFitsFewer[] =
    "; no smaller choice fits; fewer ranks (--gpus)";
inline constexpr const char kPlanAgainWith[] = "; plan again with ";
inline constexpr const char kOffloadActivationsOfFewerLayers[] =
    "; offload activations of fewer layers (--offload-activation-layers), or offload less "
    "(--offload-ratio) or to nvme, or use more hosts";
inline constexpr const char kZeroplanOffloadActivationLayers[] =
    "(_zeroplan.offload_activation_layers)";

// hw_check_test.cc
inline constexpr const char kGptOfBf[] = "| 2 x gpt2, 8 x 2 of 1024, bf16, ";
inline constexpr const char kLeftOutForWantOf[] = "Left out for want of room: ";

// interrupted_test.cc
inline constexpr const char kInterruptedOnceInOnAverage[] = "Interrupted once in 6.00 h on average";
inline constexpr const char kWhyNotInterruptionsIntervalSteps[] =
    "why_not,interruptions.interval_steps,";
inline constexpr const char kSoItEndsAfterTrain[] =
    "so it ends after train's 100 steps: --tokens, or --data";
inline constexpr const char kSavesFromHereOnEvery[] = "saves from here on: every ";
inline constexpr const char kAnInterruptionIsExpectedOnce[] =
    "an interruption is expected once in 1.00 s (--save-every auto)";
inline constexpr const char kOnceInAuto[] = "once in 2.00 h (--save-every auto)";
inline constexpr const char kSuchAsToTrainOr[] =
    "such as --interruptions 0.1/h, to train or to the plan";

// long_sequences_test.cc
inline constexpr const char kPositionsLlamaWasMadeFor[] =
    "Positions: llama3.1-8b was made for sequences of up to 131072 tokens; --seq-len 262144 goes "
    "beyond";
inline constexpr const char kIsNotAllowedGptHas[] =
    "--seq-len: 2048 is not allowed: gpt2 has 1024 positions, which it learns; use at most 1024";
inline constexpr const char kHasSlidingWindowOfTokens[] = "has a sliding window of 4096 tokens";
inline constexpr const char kDoesNotClosestIs[] = " does not: closest is ";
inline constexpr const char kPositionsLlamaWasMadeFor2[] =
    "Positions: llama3.2-1b was made for sequences of up to 131072 tokens";
inline constexpr const char kLargestFitsMoreThanThe[] =
    "Largest: --seq-len 4096 fits; more than the model's window is not planned.";
inline constexpr const char kWasMadeForSequencesOf[] =
    "was made for sequences of up to 32 tokens; --seq-len 96";
inline constexpr const char kMicroBatchOverGpusEach[] =
    "micro-batch 2 over 4 GPUs each, 1 micro-step a step: 4 sequences";
inline constexpr const char kWhichAreMoreThanThe[] =
    "which are more than the 2 sequences of a step";
inline constexpr const char kSmallestChangeThatFits[] =
    "smallest change that fits: --sequence-ranks ";
inline constexpr const char kSequencesOverGpus[] = "sequences over 2 GPUs";
inline constexpr const char kIsNotAllowedWith[] =
    "--sequence-ranks: 4 is not allowed with --config";

// machines_test.cc
inline constexpr const char kRentedByTheNodeAll[] =
    "Rented by the node, all its GPUs are paid for: p4d-24xlarge";
inline constexpr const char kNothingIsWithinTheLimits[] =
    "nothing is within the limits: the fastest, l4 with 1 GPU, takes";
inline constexpr const char kWiderTerminalAndJsonHave[] =
    "a wider terminal and --format json have all";
inline constexpr const char kNotHereWithGpu[] = "Not here: t4 with 1 GPU";
inline constexpr const char kNothingFitsAnyOfThese[] = "nothing fits any of these machines";
inline constexpr const char kLeastEnergyDgxGbWith[] = "Least energy: dgx-a100-40gb with";
inline constexpr const char kPriceAgainstTime[] = "Price against time";

// manual_test.cc
inline constexpr const char kShExitStatusDone[] = ".SH \"EXIT STATUS\"\n0 done";
inline constexpr const char kThZeroplanHwList[] = ".TH ZEROPLAN\\-HW\\-LIST 1";
inline constexpr const char kThereIsNoCommandZeroplan[] = "there is no command zeroplan-hw-lists";
inline constexpr const char kZeroplanPlanOptions[] = "zeroplan plan [OPTIONS]";
inline constexpr const char kNoneCpuNvmeAll[] = "--offload-optimizer none|cpu|nvme|all";
inline constexpr const char kThIsNoRequestAqnor[] =
    "\\&.TH is no request, \\(aqnor\\(aq this; C:\\enew \\-x \\(ti/a \\(gab\\(ga\n";

// measured_output_test.cc
inline constexpr const char kGemmNoAlgorithm[] = "gemm: no algorithm";
inline constexpr const char kPcieCannotPageLock[] = "pcie: cannot page-lock";
inline constexpr const char kRuntimeOutOfMemory[] = "runtime: out of memory";
inline constexpr const char kNothingCouldBeMeasured[] = "nothing could be measured";
inline constexpr const char kCannotPageLock[] = "cannot page-lock";

// methods_test.cc
inline constexpr const char kLoraNothingFits[] = "LoRA: nothing fits. ";
inline constexpr const char kNothingFitsByAnyOf[] = "nothing fits by any of these methods";
inline constexpr const char kFullLoraIsNotAllowed[] =
    "--method: full,lora is not allowed; use full, lora, qlora";
inline constexpr const char kUnderDdpOfPytorchTransformers[] =
    "under ddp of PyTorch 2.11, transformers' code";
inline constexpr const char kFullTuningNothingFits[] = "Full tuning: nothing fits.";

// metrics_csv_test.cc
inline constexpr const char kHalfLineAtItsEnd[] = "half a line at its end";

// open_choice_test.cc
inline constexpr const char kSmallestChangeThatFits2[] = "smallest change that fits";
inline constexpr const char kWhatTheConfigCostsIts[] = "What the config costs: its choice reaches";
inline constexpr const char kZeroplanPlanWithInPlace[] =
    "'zeroplan plan' with --global-batch 64 in place of --config finds one as fast.";
inline constexpr const char kWhatTheConfigCostsIts2[] = "What the config costs: its choice";
inline constexpr const char kChoiceTheGpusHereAre[] = "Choice: the GPUs here are not known";
inline constexpr const char kAsInTheRunTo[] = "as in the run to resume";

// packing_test.cc
inline constexpr const char kPackingDocumentsAsTheData[] =
    "Packing: documents, as the data is conversations";
inline constexpr const char kTokensAreLeftOut[] = "tokens are left out";
inline constexpr const char kWasPlannedWithoutDocuments[] =
    "was planned without --packing documents";

// plan_carries_test.cc
inline constexpr const char kLearningRateAsTheRun[] =
    "Learning rate: 2e-05, as the run starts from the weights in";
inline constexpr const char kBytesAreTokens[] = "bytes are tokens";
inline constexpr const char kDiffersSavesWerePlannedNone[] =
    "differs: saves were planned, none was made";
inline constexpr const char kJsonWasMadeForNvidia[] =
    "p.json was made for 2 x NVIDIA H200 SXM with 80.0 GB";
inline constexpr const char kHereAreNvidiaSxmWith[] = "here are 2 x NVIDIA H200 SXM with 40.0 GB";

// plan_data_test.cc
inline constexpr const char kTrainingOnEpochs[] = "Training on 2 epochs (";
inline constexpr const char kCountInTheLoss[] = "count in the loss";
inline constexpr const char kOneDocumentSequenceSequencesAn[] =
    "One document a sequence: 90 sequences an epoch, of at most 64 tokens";
inline constexpr const char kMicroBatchHasAtMost[] =
    "a micro-batch has at most 4 x 64 tokens, and 4 x ";
inline constexpr const char kMemoryIsPlannedFor[] = "memory is planned for 4 x 64";
inline constexpr const char kTwoStepsOfTheLongest[] =
    "two steps of the longest sample alone, in micro-batches of 4 x 64 tokens.";
inline constexpr const char kTrainerTrainDatasetTorchUtils[] =
    "    trainer.train_dataset = torch.utils.data.Subset(rows, [longest] * 16)\n";
inline constexpr const char kProbeTorchrunTrainPy[] =
    "    PROBE=1 torchrun --nproc_per_node 2 train.py";
inline constexpr const char kMemoryIsPlannedFor2[] = "memory is planned for 4 x 512";
inline constexpr const char kAtMostTokens[] = "at most 4 x 512 tokens";
inline constexpr const char kDatasetTorchUtilsDataSubset[] =
    "dataset = torch.utils.data.Subset(rows, [longest] * 16)\n";
inline constexpr const char kProbeAccelerateLaunch[] = "    PROBE=1 accelerate launch ";
inline constexpr const char kEveryMicroBatchIsTokens[] = "Every micro-batch is 4 x 64 tokens";
inline constexpr const char kZeroplanTrainPlanPlanJson[] =
    "zeroplan train --plan /plan/plan.json --model model --data data --epochs 2.5 --packing "
    "documents --skip-bad 1 --truncate --fresh-weights --save out ";
inline constexpr const char kTheDataAsDataAnd[] =
    "the data as `data` and the model's folder as `model`";
inline constexpr const char kPackingDocumentsInSequences[] = "Packing: documents, in sequences of ";
inline constexpr const char kEveryBatchTakesTheMemory[] =
    "All batches need the same memory and time, because all sequences have one length";
inline constexpr const char kOneDocumentSequenceSequencesAn2[] =
    "One document a sequence: 90 sequences an epoch";
inline constexpr const char kMicroBatchHasAtMost2[] = "a micro-batch has at most 2 x 64 tokens";

// plan_for_test.cc
inline constexpr const char kNoConfigSaysAdamBeta[] =
    "No config says adam_beta1, adam_beta2, adam_epsilon, max_grad_norm:";
inline constexpr const char kZeroOptimizationStage[] = "zero_optimization.stage";
inline constexpr const char kTheConfigWasChosenFor[] = "the config was chosen for deepspeed 0.19.6";
inline constexpr const char kTrainBatchSize[] = "train_batch_size";
inline constexpr const char kDistributedTypeFsdpMixedPrecision[] =
    "distributed_type: FSDP\nmixed_precision: \"bf16\"\n";
inline constexpr const char kFsdpReshardAfterForwardTrue[] = "  fsdp_reshard_after_forward: true\n";
inline constexpr const char kDynamoUseRegionalCompilationTrue[] =
    "  dynamo_use_regional_compilation: true\n";
inline constexpr const char kNameLlamaFlavor[] = "name = \"llama3\"\nflavor = \"8B\"\n";
inline constexpr const char kFsdpReshardAfterForwardAlways[] =
    "fsdp_reshard_after_forward = \"always\"\n";
inline constexpr const char kDataParallelShardDegree[] = "data_parallel_shard_degree = 8\n";
inline constexpr const char kOneGpuItShardsOn[] = "one GPU (it shards on two or more)";

// plan_fp8_test.cc
inline constexpr const char kBfFpProducts[] = "bf16, FP8 products";
inline constexpr const char kFpItsCostInAccuracy[] =
    "FP8: its cost in accuracy is not measured here";
inline constexpr const char kAndWithoutFp[] = "; and without --allow fp8 ";
inline constexpr const char kNotMeasuredHere[] = "not measured here";

// plan_search_test.cc
inline constexpr const char kStageDoesNotFit[] = "Stage 0 does not fit";
inline constexpr const char kStageDoesNotFit2[] = "Stage 1 does not fit";
inline constexpr const char kGpuMemoryShortBy[] = "GPU memory short by";
inline constexpr const char kOfGbGpu[] = " of 32.0 GB a GPU";
inline constexpr const char kZeroOptParamRecompBatch[] =
    "ZeRO opt  param recomp  batch  tok/s    step      % of 50.9  of 137 why not";
inline constexpr const char kBatchSearchedAtMostSequences[] =
    "Batch: searched, at most 16 sequences a step (65.5K tokens, 65.5K a GPU";
inline constexpr const char kNodesOfGbGibGpu[] =
    "2 nodes of 8, 84.9 GB (79.1 GiB) a GPU, 450 GB/s each way between GPUs, 3200 Gb/s each way "
    "between nodes, 2.00 TB of host memory a node";
inline constexpr const char kFpNvidiaSxmGb[] = "fp16\n1 x NVIDIA V100 SXM3 32 GB";
inline constexpr const char kDeepspeedConfigByZeroplanOwn[] =
    "a DeepSpeed config by zeroplan's own choice";
inline constexpr const char kThePlanSwapsToLocal[] = "The plan swaps to /local_nvme";
inline constexpr const char kChosenStageSelectiveRecompute[] =
    "Chosen: stage 0, selective recompute, ";
inline constexpr const char kPlanJsonCluster[] = "plan.json: cluster: ";
inline constexpr const char kOnGpuTheFewestGpus[] = "on 1 GPU: the fewest GPUs of all that fits";
inline constexpr const char kWhatLeavesMostGpuMemory[] =
    "what leaves most GPU memory of all that fits";
inline constexpr const char kSmallestChangeThatFitsCpu[] =
    "smallest change that fits: --offload-optimizer cpu";
inline constexpr const char kNoChangeWasFoundThat[] = "no change was found that fits";
inline constexpr const char kDeepspeedCannotDoWhatIs[] =
    "--out: DeepSpeed cannot do what is asked for: a schedule without total_num_steps";
inline constexpr const char kOfNodeDiskByThe[] =
    "of a node's disk, by the hardware profile's figures";
inline constexpr const char kDisksNoneWasNamedSo[] = "Disks: none was named, so none is searched";
inline constexpr const char kSmallestChangeThatFitsGb[] =
    "smallest change that fits: --host-memory 21.2GB";
inline constexpr const char kGbGibGpu[] = ", 3.98 GB (3.71 GiB) a GPU";
inline constexpr const char kUpToGbGpuNothing[] = "Up to 3.983 GB a GPU nothing fits.";

// plan_test.cc
inline constexpr const char kPinnedHostMemoryShortBy[] = "pinned host memory short by";

// planned_models_test.cc
inline constexpr const char kTransformersCodeNotCompiledEager[] =
    "transformers' code, not compiled, eager attention";
inline constexpr const char kParametersOfTypeGemmaWhich[] =
    "2.61B parameters of type gemma2, which zeroplan does not train";
inline constexpr const char kApproximatedNoWeightsLieBeside[] =
    "Approximated: no weights lie beside config.json";
inline constexpr const char kAllocatedMemoryWasOffBy[] = "allocated memory was off by";
inline constexpr const char kExpertsAreTheGroupedProducts[] =
    "experts are the grouped products of transformers 5";
inline constexpr const char kChosenForDeepspeedStage[] = "Chosen for DeepSpeed: stage ";
inline constexpr const char kFreezesTheTowerThatSees[] = "freezes the tower that sees";
inline constexpr const char kOwnExecutorWouldReach[] = "own executor would reach";

// precision_test.cc
inline constexpr const char kBfGradientsSummedAndReduced[] =
    "bf16, gradients summed and reduced in fp32 2 x ";
inline constexpr const char kNoneOfTheseRunsOf[] =
    "none of these runs of DeepSpeed reduced in fp32";
inline constexpr const char kGradientsSummedAndReducedIn[] = "gradients summed and reduced in fp32";

// runtime_plan_test.cc
inline constexpr const char kStageWithRecomputeIsThe[] =
    "Stage 3 with recompute is the least certain: ";
inline constexpr const char kChosenForDeepspeedStage2[] = "Chosen for DeepSpeed: stage 1, ";
inline constexpr const char kButItsTimeIsKnown[] =
    "but its time is known less well: to be taken it has to be 3.1 % faster.";
inline constexpr const char kHasNoOptimizerTheScript[] =
    "has no optimizer: the script makes the one that was planned";
inline constexpr const char kOptimizerBitsandbytesOptimAdamwBit[] =
    "optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=LR)";
inline constexpr const char kAsItWasPlannedLayers[] =
    "as it was planned: --compile layers, --code hf, --optim adamw_bnb_8bit.";
inline constexpr const char kTorchUtilsCheckpoint[] = "torch.utils.checkpoint";
inline constexpr const char kTorchCompileOfEveryLayer[] = "torch.compile of every layer";
inline constexpr const char kChosenForDeepspeed[] = "Chosen for DeepSpeed: ";
inline constexpr const char kWithItsOwnBestPlan[] =
    "with its own best plan (stage 2, full recompute, activations on";
inline constexpr const char kAsDeepspeedCpuCheckpointing[] = "as DeepSpeed's cpu_checkpointing";
inline constexpr const char kOfNvmeNoRunWas[] = "Of NVMe no run was compared";
inline constexpr const char kStageFullRecomputeActivationsOn[] =
    "stage 2, full recompute, activations on cpu, 16-bit masters, bf16 states";
inline constexpr const char kIsNotAllowedWithWhich[] =
    "--offload-activations: is not allowed with --config, which decides it";
inline constexpr const char kNothingFitsDeepspeed[] = "nothing fits DeepSpeed";
inline constexpr const char kSmallestChangeThatFits3[] = "smallest change that fits: --";
inline constexpr const char kOutOfMemoryInInitialisation[] = "out of memory in initialisation";
inline constexpr const char kNothingFitsFsdp[] = "nothing fits FSDP2";

// runtime_test.cc
inline constexpr const char kRuntimeRoomGpuBytesReserved[] =
    ",runtime,room,gpu_bytes.reserved,step_seconds.host_overhead,global_batch,";

// schema_test.cc
inline constexpr const char kKindTablesIsNotAllowed[] =
    "kind: tables is not allowed; use config, profile, plan or metrics";

// states_test.cc
inline constexpr const char kBfBitMastersBfStates[] =
    "bf16, 16-bit masters, bf16 states, micro-batch";
inline constexpr const char kValidationLossAgainstFpStates[] =
    "validation loss +0.79 % against fp32 states";
inline constexpr const char kItsCostInAccuracyIs[] = "its cost in accuracy is not measured here";
inline constexpr const char kCommunicationDtypeMasterWeightsOptimizer[] =
    "communication_dtype,master_weights,optimizer_states,";
inline constexpr const char kBfBfBfFpBit[] = ",bf16,bf16,bf16,fp32,8bit,";
inline constexpr const char kSplitMastersBitStates[] = "split masters, 8-bit states";
inline constexpr const char kOptimizerStatesBit[] = "Optimizer states: 16-bit";
inline constexpr const char kSmallestChangeThatFitsSplit[] =
    "smallest change that fits: --allow split-masters ";
inline constexpr const char kOptimizerStatesAreFpWith[] =
    "Optimizer states are fp32; with --allow split-masters ";
inline constexpr const char kWithSplitMastersTheModel[] =
    "with --allow split-masters the model fits on 1 GPU, where";
inline constexpr const char kWithBitStatesItFits[] =
    "with --allow 8bit-states it fits on 1 GPU instead of 2";
inline constexpr const char kUseForPlanThatZeroplan[] =
    "use --plan-out for a plan that zeroplan runs";
inline constexpr const char kUseForItsPlanInstead[] =
    "use --plan-out for its plan instead of --out";

// streams_test.cc
inline constexpr const char kCannotWriteToStdout[] = "cannot write to stdout: ";
inline constexpr const char kDevFullCannotWriteNo[] =
    "--trace: /dev/full: cannot write: No space left on device";
inline constexpr const char kCannotWriteFileTooLarge[] = "cannot write: File too large";
inline constexpr const char kOnTheCpuFp[] = "on the CPU fp32";

// terminal_test.cc
inline constexpr const char kTitleXffJson[] = "\\x1b]0;title\\x07\\x9b31m\\xff\\u202e\\r.json";

// trace_test.cc
inline constexpr const char kNoPredictedStepThereIs[] =
    "no predicted step: there is no prediction for the CPU backend";

// train_best_test.cc
inline constexpr const char kWeightsThoseOfStep[] = "weights: those of step-";
inline constexpr const char kBugInZeroplan[] = "bug in zeroplan";
inline constexpr const char kBestTheBestCheckpointIs[] =
    "--final-weights best: the best checkpoint is damaged";
inline constexpr const char kToResumeFromIt[] = "to resume from it";
inline constexpr const char kNothingWasTrainedAllSteps[] =
    "nothing was trained: all 3 steps were left out, the last with ";

// train_resume_test.cc
inline constexpr const char kStepRankSafetensors[] = "step-00000020/rank-0001.safetensors: ";
inline constexpr const char kTheDataIsNotWhat[] = "the data is not what was saved";
inline constexpr const char kTakingStepTheNewestIntact[] =
    "taking step-00000010, the newest intact checkpoint: 10 steps are trained ";
inline constexpr const char kMaxBadStepsInThe[] =
    "max-bad-steps: 3 in the checkpoint, 2 from here on";
inline constexpr const char kSkipLossSpikeInThe[] =
    "skip-loss-spike: 4 in the checkpoint, none are skipped from here on";
inline constexpr const char kValidationDataWhatTheData[] =
    "validation-data: what the data holds back in the checkpoint, ";
inline constexpr const char kInFilesRanksIntact[] = " in 2 files, 2 ranks  intact\n";
inline constexpr const char kOfCheckpointsIsDamaged[] = "1 of 2 checkpoints is damaged";
inline constexpr const char kSequenceOfTokensStep[] = "1 sequence of 32 tokens a step";
inline constexpr const char kNoStepRanBefore[] = "no step ran; 3 before";
inline constexpr const char kStepSecondsMedianNull[] = "\"step_seconds_median\":null";
inline constexpr const char kCannotRenameTo[] = "cannot rename to ";
inline constexpr const char kTheFileSystemCannotLock[] = "the file system cannot lock";
inline constexpr const char kSaysWhatMayNotDo[] = "--strict-resume: says what --resume may not do";

// train_signals_test.cc
inline constexpr const char kInterruptedNothingWasSaved[] = "interrupted; nothing was saved";
inline constexpr const char kItRanOutOfGpu[] = "It ran out of GPU memory";
inline constexpr const char kCannotStartThreadFor[] = "cannot start a thread for ";

// train_test.cc
inline constexpr const char kRuntimeDeepspeedAsZeroplan[] =
    "Runtime: DeepSpeed, as zeroplan does not train models of the type ";
inline constexpr const char kBatchSequencesOfTokensNearest[] =
    "Batch: 3904 sequences of 1024 tokens a step, 3997696 tokens, the nearest to "
    "--global-batch-tokens 4M.";
inline constexpr const char kHoldsNoModelSafetensors[] =
    " holds no model.safetensors; fetch the weights into it, or ";
inline constexpr const char kHasRecordsToTune[] = " has records to tune weights on; ";
inline constexpr const char kAdaptersAreTrainedBeside[] =
    "is a shape without weights, and adapters are trained beside weights; ";
inline constexpr const char kSavedTheModelAsTransformers[] =
    "saved      the model, as transformers reads it, in ";
inline constexpr const char kSavedTheAdapterAsPeft[] =
    "saved      the adapter, as PEFT reads it, in ";
inline constexpr const char kLearningRateOfAdapters[] =
    "Learning rate: 0.0002 after 3 % of warm-up, then down a cosine, as adapters are trained; --lr";
inline constexpr const char kStopsAfterThisStepAnd[] =
    "stops after this step, and saves; Ctrl-C again ends it at once";
inline constexpr const char kChatsJsonlBytesAreTokens2[] =
    "chats.jsonl: bytes are tokens, as the model has 256 tokens, so its";
inline constexpr const char kChatsJsonlBytesAreTokens3[] =
    "chats.jsonl: bytes are tokens, as no tokenizer.json lies beside";
inline constexpr const char kTokensBytesAsNoTokenizer[] =
    "Tokens: bytes, as no tokenizer.json lies beside the model: 256 of its 300 tokens.";
inline constexpr const char kTokensBinIsFileOf[] =
    "tokens.bin is a file of tokens: one run reads one kind";
inline constexpr const char kParametersAreTrained[] = "parameters are trained";
inline constexpr const char kHoldsItUpItIs[] =
    "holds it up: it is between two calls of the engine (progress, metrics";
inline constexpr const char kDidNotEndWithinOf[] =
    "did not end within 5.0 s of that and is ended now";

// watch_test.cc
inline constexpr const char kMhzBusyHost[] = "412 W  2520 MHz  busy 97%  host ";
inline constexpr const char kZeroplanTrainZeroplanTest[] = "zeroplan train zeroplan-test-";
inline constexpr const char kAllRestartsAreUsed[] = "all 1 restarts are used";
inline constexpr const char kStderrIsNoTerminalLeave[] =
    "--watch: stderr is no terminal; leave it out, or use --monitor";

// why_test.cc
inline constexpr const char kItRanOutOfGpu2[] =
    "It ran out of GPU memory in the backward pass (line 63, rank 3)";
inline constexpr const char kPerDeviceTrainBatchSize[] =
    "--micro-batch 4 --grad-accum 4 [per_device_train_batch_size 4";
inline constexpr const char kItRanOutOfGpu3[] = "It ran out of GPU memory in logits and loss";
inline constexpr const char kDoesNotSayWhatPrediction[] =
    "does not say what a prediction takes; give --model, the model; --seq-len";
inline constexpr const char kNothingOfTrainingRunIs[] = "nothing of a training run is recognised";
inline constexpr const char kStdinItRanOutOf[] =
    "stdin: It ran out of GPU memory in logits and loss";
inline constexpr const char kOfWhichItsAllocatorWas[] =
    "of which its allocator was allowed 24.00 GiB";
inline constexpr const char kMineIsIn[] = "--id: mine is in";

}  // namespace zeroplan::wording
