# What `cmake --install` puts where: the public header under include/lockstep, the library, the
# program, ready configurations, examples, the CMake package and the pkg-config file. All of it may
# be moved.
include(CMakePackageConfigHelpers)

foreach(dir LIBDIR INCLUDEDIR BINDIR DATADIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
        message(FATAL_ERROR "CMAKE_INSTALL_${dir} is ${CMAKE_INSTALL_${dir}}, wanted a path "
                "relative to the prefix: the installed files find each other by it")
    endif()
endforeach()
set(lockstep_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
set(lockstep_share_dir ${CMAKE_INSTALL_DATADIR}/lockstep)

# What the library promises: everything else is its own business.
install(FILES ${PROJECT_SOURCE_DIR}/apps/run/include/lockstep/lockstep.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/examples/
        DESTINATION ${lockstep_share_dir}/examples COMPONENT dev)
install(TARGETS lockstep EXPORT lockstepTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
if(TARGET lockstep_program)
    # With a shared library the program finds it from where it stands.
    file(RELATIVE_PATH to_libdir /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
    set_target_properties(lockstep_program PROPERTIES EXPORT_NAME program
                          INSTALL_RPATH $ORIGIN/${to_libdir})
    install(TARGETS lockstep_program EXPORT lockstepTargets
            RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
file(GLOB configs CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/configs/*.json)
install(FILES ${configs} DESTINATION ${lockstep_share_dir}/configs COMPONENT runtime)
file(GLOB published CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/configs/published/*.json)
install(FILES ${published} DESTINATION ${lockstep_share_dir}/configs/published COMPONENT runtime)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

# --- find_package(lockstep) --------------------------------------------------------------------

install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${lockstep_cmake_dir} COMPONENT dev)
configure_package_config_file(
    ${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
    INSTALL_DESTINATION ${lockstep_cmake_dir}
    PATH_VARS lockstep_share_dir
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES
    ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
    ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
    ${CMAKE_CURRENT_LIST_DIR}/LockstepRuns.cmake
    ${CMAKE_CURRENT_LIST_DIR}/RunLockstep.cmake
    DESTINATION ${lockstep_cmake_dir} COMPONENT dev)

# --- pkg-config --------------------------------------------------------------------------------

# The prefix is counted back from the .pc file, since it may be installed or moved anywhere.
file(RELATIVE_PATH lockstep_pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" lockstep_pc_to_prefix "${lockstep_pc_to_prefix}")
list(TRANSFORM LOCKSTEP_PACKAGES REPLACE "^[^=]*=" "" OUTPUT_VARIABLE modules)
list(JOIN modules " " lockstep_pc_requires)
set(lockstep_pc_libs "-lprotobuf-nanopb -pthread")
if(LOCKSTEP_HAVE_CUDA)
    string(APPEND lockstep_pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
# A static library needs them from everybody, not only from who asks with --static.
set(lockstep_pc_scope "")
set(lockstep_pc_libs " ${lockstep_pc_libs}")
get_target_property(type lockstep TYPE)
if(type STREQUAL "SHARED_LIBRARY")
    set(lockstep_pc_scope .private)
    set(lockstep_pc_libs "\nLibs.private:${lockstep_pc_libs}")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
