# Before a .deb is closed: compresses what Debian compresses, and moves what it keeps elsewhere.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
find_program(gzip gzip REQUIRED)
# Components are staged in folders of their own where there are several packages, else in one.
file(GLOB roots ${CPACK_TEMPORARY_DIRECTORY}/usr ${CPACK_TEMPORARY_DIRECTORY}/*/usr)
foreach(usr ${roots})
  file(GLOB pages ${usr}/share/man/man1/*.1)
  if(pages)
    execute_process(COMMAND ${gzip} -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)
  endif()
  # Debian's zsh looks there.
  if(EXISTS ${usr}/share/zsh/site-functions)
    file(RENAME ${usr}/share/zsh/site-functions ${usr}/share/zsh/vendor-completions)
  endif()
  file(GLOB documents ${usr}/share/doc/*)
  foreach(folder ${documents})
    if(NOT EXISTS ${folder}/CHANGELOG.md)
      continue()
    endif()
    # The licence is in `copyright`, and whole in /usr/share/common-licenses.
    file(REMOVE ${folder}/LICENSE)
    file(RENAME ${folder}/CHANGELOG.md ${folder}/changelog)
    string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
    file(WRITE ${folder}/changelog.Debian
      "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=low\n\n"
      "  * Package of zeroplan ${CPACK_PACKAGE_VERSION}; changelog.gz says what is new.\n\n"
      " -- ${CPACK_PACKAGE_CONTACT}  ${now}\n")
    execute_process(COMMAND ${gzip} -9n ${folder}/changelog ${folder}/changelog.Debian
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()
