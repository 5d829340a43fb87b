# The library of text: tokenizers, chat templates, records and token files.
zeroplan_library(text LINK zeroplan_core Threads::Threads)
target_link_libraries(zeroplan_text PRIVATE zeroplan::oniguruma zeroplan::utf8proc  # tokenizers
  zeroplan::zlib zeroplan::zstd zeroplan::xxhash)  # files of text
