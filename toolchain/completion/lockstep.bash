# lockstep.bash - completion for bash. What may follow is asked of the program itself, so this file
# knows no option: `lockstep complete WORD...` answers from the tables that parse them.
_lockstep() {
    local program=${COMP_WORDS[0]/#\~/$HOME} current=${COMP_WORDS[COMP_CWORD]} line file
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
        :files | :directories)
            compopt -o filenames 2>/dev/null
            while IFS= read -r file; do
                COMPREPLY+=("$file")
            done < <(if [ "$line" = :files ]; then compgen -f -- "$current"
                     else compgen -d -- "$current"; fi)
            ;;
        "$current"*) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("$program" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _lockstep lockstep
