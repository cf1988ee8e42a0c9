# Finds NCCL: NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIRS, NCCL_LIBRARY and the target NCCL::nccl.
# NCCL brings a package file of its own from 2.29.7 on; older ones are looked for by their parts.
# NCCL_ROOT or NCCL_HOME, as variables or in the environment, say where.
find_package(NCCL CONFIG QUIET)
if(NCCL_FOUND AND TARGET NCCL::nccl)
    get_target_property(NCCL_INCLUDE_DIRS NCCL::nccl INTERFACE_INCLUDE_DIRECTORIES)
    get_target_property(NCCL_LIBRARY NCCL::nccl LOCATION)
else()
    set(hints ${NCCL_ROOT} $ENV{NCCL_ROOT} ${NCCL_HOME} $ENV{NCCL_HOME} ${CUDAToolkit_TARGET_DIR}
        ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_BIN_DIR}/..)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${hints} PATH_SUFFIXES include)
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${hints} PATH_SUFFIXES lib64 lib)
    mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
    set(NCCL_VERSION "")
    if(NCCL_INCLUDE_DIR)
        file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h lines
             REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
        foreach(part MAJOR MINOR PATCH)
            if("${lines}" MATCHES "NCCL_${part} +([0-9]+)")
                list(APPEND NCCL_VERSION ${CMAKE_MATCH_1})
            endif()
        endforeach()
        list(JOIN NCCL_VERSION . NCCL_VERSION)
    endif()
    set(NCCL_INCLUDE_DIRS ${NCCL_INCLUDE_DIR})
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIRS
                                  VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
    add_library(NCCL::nccl UNKNOWN IMPORTED)
    set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIRS})
endif()
