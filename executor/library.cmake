# The executor's library, and what it links: libraries of text, Arrow, CUDA and cuDNN where they are there.
zeroplan_library(executor LINK zeroplan_hwprofiles Eigen3::Eigen Threads::Threads)
target_link_libraries(zeroplan_executor PRIVATE zeroplan::pcre2 zeroplan::utf8proc  # its tokenizer
  zeroplan::zlib zeroplan::zstd)  # files of text
# Tables of text. Few machines have Arrow (20 or newer): without it Parquet files are refused with the way out.
option(ZEROPLAN_ARROW "Read Parquet files, if Arrow is there" ON)
if(ZEROPLAN_ARROW)
  find_package(Arrow CONFIG QUIET)
  find_package(Parquet CONFIG QUIET)
endif()
if(Arrow_FOUND AND Parquet_FOUND AND Arrow_VERSION VERSION_GREATER_EQUAL 20)
  message(STATUS "zeroplan: Parquet: with Arrow ${Arrow_VERSION}")
  target_compile_definitions(zeroplan_executor PUBLIC ZEROPLAN_WITH_ARROW=1)
  target_link_libraries(zeroplan_executor PRIVATE Parquet::parquet_shared Arrow::arrow_shared)
else()
  message(STATUS "zeroplan: Parquet: off (no Arrow of version 20 or newer)")
endif()
if(ZEROPLAN_WITH_CUDA)
  target_compile_definitions(zeroplan_executor PUBLIC ZEROPLAN_WITH_CUDA=1)
  target_link_libraries(zeroplan_executor PUBLIC zeroplan_cuda_libraries)
  string(REPLACE ";" "," architectures "${CMAKE_CUDA_ARCHITECTURES}")
  set_source_files_properties(executor/measure/cuda/query_libraries.cc PROPERTIES
    COMPILE_DEFINITIONS "ZEROPLAN_CUDA_ARCHITECTURES=\"${architectures}\"")
endif()
if(ZEROPLAN_WITH_CUDNN)
  target_compile_definitions(zeroplan_executor PRIVATE ZEROPLAN_WITH_CUDNN=1)
  target_link_libraries(zeroplan_executor PUBLIC zeroplan_cudnn)
  # cuDNN's frontend is the largest header of all: without what writes its graphs as JSON, and with
  # less optimization, it takes a quarter of the time. A launch passes through little of it.
  set_source_files_properties(executor/kernels/cuda/attention/cudnn_sdpa.cc PROPERTIES
    COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>
    SKIP_PRECOMPILE_HEADERS ON)
endif()
