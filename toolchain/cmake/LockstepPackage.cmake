# Documentation, manual pages, completion, the service kit, and Debian packages:
#   cpack --config build/NAME/CPackConfig.cmake
# makes three: lockstep (the program), liblockstep-dev (library, headers, CMake and pkg-config
# files), lockstep-doc (documents, examples).
find_program(LOCKSTEP_GZIP gzip)

# --- manual pages ------------------------------------------------------------------------------

# The program writes them from its own help. Where it cannot run here there are none.
set(manual_dir ${PROJECT_BINARY_DIR}/manual)
if(TARGET lockstep_program AND (NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR))
    set(compress)
    if(LOCKSTEP_GZIP)
        set(compress COMMAND sh -c "${LOCKSTEP_GZIP} -9nf ${manual_dir}/*.[17]")
    endif()
    add_custom_command(OUTPUT ${manual_dir}.stamp
        COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual_dir}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${manual_dir}
        COMMAND lockstep_program manual --to ${manual_dir}
        ${compress}
        COMMAND ${CMAKE_COMMAND} -E touch ${manual_dir}.stamp
        DEPENDS lockstep_program VERBATIM COMMENT "Writing manual pages")
    add_custom_target(manual ALL DEPENDS ${manual_dir}.stamp)
    foreach(section 1 7)
        install(DIRECTORY ${manual_dir}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section}
                COMPONENT runtime FILES_MATCHING PATTERN "*.${section}*")
    endforeach()
endif()

# --- completion, documents, examples -----------------------------------------------------------

install(FILES ${PROJECT_SOURCE_DIR}/toolchain/completion/lockstep.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lockstep
        COMPONENT runtime)
install(FILES ${PROJECT_SOURCE_DIR}/toolchain/completion/_lockstep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT runtime)

# In folders as in the sources, so that their links lead somewhere.
file(GLOB documents CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/*.md
     ${PROJECT_SOURCE_DIR}/*/*.md)
foreach(document IN LISTS documents)
    get_filename_component(folder ${document} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${document} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder}
            COMPONENT doc)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/toolchain/service DESTINATION
        ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT doc USE_SOURCE_PERMISSIONS)

# --- Debian's ----------------------------------------------------------------------------------

# What its policy wants in each package: who may copy it, and what changed. No other installation
# has them.
set(debian_dir ${PROJECT_BINARY_DIR}/debian)
set(release 1)
set(LOCKSTEP_MAINTAINER "The Lockstep developers <lockstep@lockstep.invalid>" CACHE STRING
    "Who answers for the packages: Name <mail>")
set(CPACK_PACKAGE_CONTACT ${LOCKSTEP_MAINTAINER})
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH is heard
configure_file(${CMAKE_CURRENT_LIST_DIR}/debian-copyright.in ${debian_dir}/copyright @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/debian-changelog.in ${debian_dir}/changelog.Debian @ONLY)
set(changelogs ${debian_dir}/changelog.Debian)
if(LOCKSTEP_GZIP)
    configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md ${debian_dir}/changelog COPYONLY)
    execute_process(COMMAND ${LOCKSTEP_GZIP} -9nf ${debian_dir}/changelog.Debian
                            ${debian_dir}/changelog)
    set(changelogs ${debian_dir}/changelog.Debian.gz ${debian_dir}/changelog.gz)
endif()
include(CPackComponent)
set(packages runtime=lockstep dev=liblockstep-dev doc=lockstep-doc)
foreach(pair IN LISTS packages)
    string(REGEX MATCH "^(.*)=(.*)$" pair ${pair})
    set(component ${CMAKE_MATCH_1})
    set(package ${CMAKE_MATCH_2})
    string(TOUPPER ${component} key)
    install(FILES ${debian_dir}/copyright ${changelogs}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
            COMPONENT debian-${component} EXCLUDE_FROM_ALL)
    set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${package})
    set(CPACK_DEBIAN_${key}_FILE_NAME DEB-DEFAULT)
    set(CPACK_DEBIAN_${key}_DEBUGINFO_PACKAGE OFF)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR Lockstep)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
    GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL runtime dev doc debian-runtime debian-dev debian-doc)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${release})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fixed-memory, deterministic neural-network trainer")
set(about "Lockstep trains neural networks data-parallel, in one block of memory that is
sized before the run and sealed.")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "${about} The trained weights
are the same bits on any hardware, with any number of replicas, workers and
threads.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
# MPI's library is loaded by processes that a launcher started, so nothing links it.
string(REGEX REPLACE "^libmpich\\.so\\." "libmpich" mpi "${LOCKSTEP_MPI_LIBRARY}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS ${mpi})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "lockstep-doc, dataset-fashion-mnist, bash-completion")

set(CPACK_COMPONENT_DEV_DESCRIPTION "${about} This package holds the library, its headers,
and the files by which CMake and pkg-config find them.")
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
# What the package's CMake and pkg-config files ask for by name.
set(depends "lockstep (= ${PROJECT_VERSION}-${release})" libc6-dev zlib1g-dev libnanopb-dev)
find_program(LOCKSTEP_DPKG_QUERY dpkg-query)
foreach(pair IN LISTS LOCKSTEP_PACKAGES)
    string(REGEX REPLACE "^.*=" "" module ${pair})
    if(LOCKSTEP_DPKG_QUERY)
        execute_process(COMMAND ${LOCKSTEP_DPKG_QUERY} -S */pkgconfig/${module}.pc
                        OUTPUT_VARIABLE owner ERROR_QUIET)
        if(owner MATCHES "^([a-z0-9.+-]+)")
            list(APPEND depends ${CMAKE_MATCH_1})
        endif()
    endif()
endforeach()
list(JOIN depends ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)

set(CPACK_COMPONENT_DOC_DESCRIPTION "${about} This package holds its documents, the exact
definition of its arithmetic among them, and examples.")
set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)

include(CPack)
foreach(component runtime dev doc)
    cpack_add_component(${component} GROUP ${component})
    cpack_add_component(debian-${component} GROUP ${component})
endforeach()
