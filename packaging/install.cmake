# cmake --install: programs, manual pages, completions, documentation. Folders are GNUInstallDirs';
# components: programs, manual, documentation.
include(GNUInstallDirs)

# zeroplan becomes zeroplan-executor, which it looks for beside itself and then here. The way from one
# to the other is what is compiled in, so that an installation may be moved.
set(executor_folder ${CMAKE_INSTALL_LIBEXECDIR}/zeroplan)
file(RELATIVE_PATH executor_from_zeroplan
  ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBEXECDIR}/zeroplan)
set_property(SOURCE cli/common/executor_commands.cc APPEND PROPERTY
  COMPILE_DEFINITIONS ZEROPLAN_EXECUTOR_FOLDER="${executor_from_zeroplan}" $<$<BOOL:${ZEROPLAN_RELEASE}>:ZEROPLAN_RELEASE=1>)

install(TARGETS zeroplan RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
set(describing_program zeroplan)
if(ZEROPLAN_EXECUTOR)
  install(TARGETS zeroplan_executor_program
    RUNTIME DESTINATION ${executor_folder} COMPONENT programs)
  set(describing_program zeroplan_executor_program)
endif()

# Manual pages and completions are written by the program that knows all options of this build.
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  message(STATUS "zeroplan: manual pages and completions: none, the program cannot run here to write them "
    "(set CMAKE_CROSSCOMPILING_EMULATOR)")
else()
  set(manual ${CMAKE_BINARY_DIR}/manual)
  add_custom_command(OUTPUT ${manual}/written DEPENDS ${describing_program}
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual}
    COMMAND ${describing_program} man --write-to ${manual}/man1
    COMMAND ${describing_program} completion bash -o ${manual}/zeroplan
    COMMAND ${describing_program} completion zsh -o ${manual}/_zeroplan
    COMMAND ${describing_program} completion fish -o ${manual}/zeroplan.fish
    COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}/schemas
    COMMAND ${describing_program} config schema config -o ${manual}/schemas/config.schema.json
    COMMAND ${describing_program} config schema profile -o ${manual}/schemas/profile.schema.json
    COMMAND ${describing_program} config schema plan -o ${manual}/schemas/plan.schema.json
    COMMAND ${describing_program} config schema metrics -o ${manual}/schemas/metrics.schema.json
    COMMAND ${CMAKE_COMMAND} -E touch ${manual}/written
    COMMENT "Writing manual pages, completions and schemas" VERBATIM)
  add_custom_target(zeroplan_manual ALL DEPENDS ${manual}/written)
  install(DIRECTORY ${manual}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT manual)
  install(FILES ${manual}/zeroplan
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT manual)
  install(FILES ${manual}/_zeroplan
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT manual)
  install(FILES ${manual}/zeroplan.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT manual)
  # Of the files that people edit (docs/formats.md).
  install(DIRECTORY ${manual}/schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/zeroplan COMPONENT manual)
endif()

# Messages and pages name docs/NAME.md; README.md links to these and to the examples.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE packaging/copyright
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documentation)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documentation)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documentation
  USE_SOURCE_PERMISSIONS)
# scripts/release.sh collects the licences of the libraries in the programs.
install(DIRECTORY ${CMAKE_BINARY_DIR}/licenses DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documentation OPTIONAL)
