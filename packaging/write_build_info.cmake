# Run in each build: puts the checkout's commit into TEMPLATE. OUTPUT is touched only where that
# changes it.
set(commit "${GIVEN_COMMIT}")
set(date "${GIVEN_DATE}")
set(changed false)
if(NOT commit AND GIT AND EXISTS ${SOURCE_DIR}/.git)
  # A checkout of another user (of a container, often) is read too: what builds it runs its files anyway.
  set(git ${GIT} -c safe.directory=${SOURCE_DIR} -C ${SOURCE_DIR})
  execute_process(COMMAND ${git} log -1 --format=%H\ %cs
    OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0 AND said MATCHES "^([0-9a-f]+) ([0-9-]+)$")
    string(SUBSTRING "${CMAKE_MATCH_1}" 0 12 commit)
    set(date "${CMAKE_MATCH_2}")
    execute_process(COMMAND ${git} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE said RESULT_VARIABLE status ERROR_QUIET)
    if(NOT status EQUAL 0 OR NOT said STREQUAL "")
      set(changed true)
    endif()
  endif()
endif()
configure_file(${TEMPLATE} ${OUTPUT})
