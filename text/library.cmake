# The library of text: tokenizers, chat templates, records and token files. Parquet where Arrow is there.
zeroplan_library(text LINK zeroplan_core Threads::Threads)
target_link_libraries(zeroplan_text PRIVATE zeroplan::oniguruma zeroplan::utf8proc  # tokenizers
  zeroplan::zlib zeroplan::zstd)  # files of text
# Tables of text. Few machines have Arrow (20 or newer): without it Parquet files are refused with the way out.
option(ZEROPLAN_ARROW "Read Parquet files, if Arrow is there" ON)
if(ZEROPLAN_ARROW)
  find_package(Arrow CONFIG QUIET)
  find_package(Parquet CONFIG QUIET)
endif()
if(Arrow_FOUND AND Parquet_FOUND AND Arrow_VERSION VERSION_GREATER_EQUAL 20)
  message(STATUS "zeroplan: Parquet: with Arrow ${Arrow_VERSION}")
  target_compile_definitions(zeroplan_text PUBLIC ZEROPLAN_WITH_ARROW=1)
  target_link_libraries(zeroplan_text PRIVATE Parquet::parquet_shared Arrow::arrow_shared)
else()
  message(STATUS "zeroplan: Parquet: off (no Arrow of version 20 or newer)")
endif()
