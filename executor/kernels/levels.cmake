# Compiles the CPU's kernels for each level of instruction sets (cpu_levels.h): cpu_kernel_sources are the
# sources, zeroplan_add_cpu_kernels(TARGET) puts the objects into a library.
#
# Two levels compile the same inline functions of std, fmt and Eigen, and the linker keeps one of them, which
# may be that for AVX-512. So the objects of v3 and v4 are linked to one object each, whose symbols are
# local but for its kernel set (kernel_set.cc).
file(GLOB cpu_kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/executor/kernels/*.cc)
list(REMOVE_ITEM cpu_kernel_sources
  ${CMAKE_SOURCE_DIR}/executor/kernels/cpu_kernels.cc ${CMAKE_SOURCE_DIR}/executor/kernels/thread_pool.cc)
# Adam, NF4 and blocks of integers round each multiplication and addition, at every level.
set_property(SOURCE executor/kernels/adamw_update.cc executor/kernels/int_blocks.cc executor/kernels/nf4.cc
  APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)

# Binutils' ld links the objects, whatever links the programs. Sanitizers register each object's data by code
# that runs before main, so builds with one have the baseline alone.
set(ZEROPLAN_WITH_CPU_LEVELS OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND NOT ZEROPLAN_SANITIZE)
  set(ZEROPLAN_WITH_CPU_LEVELS ON)
  find_program(ZEROPLAN_BINUTILS_LD NAMES ld.bfd ld REQUIRED)
endif()

# The objects of `level` as the target zeroplan_kernels_LEVEL. GCC takes the intrinsics that Eigen uses for reads
# of what was never written (its bug 105593).
function(zeroplan_compile_kernels level)
  set(target zeroplan_kernels_${level})
  add_library(${target} OBJECT ${cpu_kernel_sources})
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/include_executor)
  target_link_libraries(${target} PRIVATE zeroplan_options zeroplan_core Eigen3::Eigen)
  target_compile_definitions(${target} PRIVATE ZEROPLAN_KERNEL_SET=${target})
  target_compile_options(${target} PRIVATE ${position_independent} ${strict_warnings}
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> ${ARGN})
  set_target_properties(${target} PROPERTIES ZEROPLAN_HOT ON)
  zeroplan_unite(${target})
endfunction()

function(zeroplan_add_cpu_kernels library)
  zeroplan_compile_kernels(baseline)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:zeroplan_kernels_baseline>)
  if(NOT ZEROPLAN_WITH_CPU_LEVELS)
    return()
  endif()
  target_compile_definitions(${library} PRIVATE ZEROPLAN_WITH_CPU_LEVELS=1)
  foreach(level v3 v4)
    set(target zeroplan_kernels_${level})
    # objcopy leaves symbols global that GCC marks as unique in the process.
    zeroplan_compile_kernels(${level} -march=x86-64-${level} -fno-lto $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
    set(object ${CMAKE_BINARY_DIR}/${target}.o)
    add_custom_command(OUTPUT ${object} DEPENDS $<TARGET_OBJECTS:${target}>
      COMMAND ${ZEROPLAN_BINUTILS_LD} -r --force-group-allocation -o ${target}_all.o $<TARGET_OBJECTS:${target}>
      COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=${target} ${target}_all.o ${object}
      WORKING_DIRECTORY ${CMAKE_BINARY_DIR} COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "Linking the CPU's kernels for x86-64-${level}")
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    target_sources(${library} PRIVATE ${object})
  endforeach()
endfunction()
