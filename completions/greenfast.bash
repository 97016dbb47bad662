# Bash completion for greenfast. Names come from the command itself, so they are those of this build.
# Installed to share/bash-completion/completions/greenfast; by hand: source completions/greenfast.bash

# The options of a subcommand, from its --help.
_greenfast_options() {
  "$1" ${2:+"$2"} --help 2>/dev/null | grep -oE '^ +(-[a-zA-Z],)?--[a-z-]+' | grep -oE -- '--[a-z-]+'
}

# Completes the last item of a comma-separated list.
_greenfast_list() {
  local items=$1 word=$2 prefix=
  case $word in *,*) prefix=${word%,*}, ;; esac
  mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$items" -- "${word##*,}")
  compopt -o nospace 2>/dev/null
}

_greenfast() {
  local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]}
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  COMPREPLY=()
  # Bash splits words at '=': in --causal=top the word before is '='.
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = && $COMP_CWORD -ge 2 ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi

  if [[ $COMP_CWORD -eq 1 ]]; then
    local commands
    commands=$("$program" --help 2>/dev/null | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]\{1,\}\) .*/\1/p')
    mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$word")
    return
  fi
  case $before in
    --variants) _greenfast_list "$("$program" list --names variants 2>/dev/null) all auto ladder rollback" "$word" ;;
    --shapes | --why | --primary | --held-out) _greenfast_list "$("$program" list --names shapes 2>/dev/null)" "$word" ;;
    --baseline | --candidate)
      mapfile -t COMPREPLY < <(compgen -W "$("$program" list --names variants 2>/dev/null)" -- "$word") ;;
    --set)
      mapfile -t COMPREPLY < <(compgen -S = -W "$("$program" list --names toggles 2>/dev/null)" -- "$word")
      compopt -o nospace 2>/dev/null ;;
    --policy)
      mapfile -t COMPREPLY < <(compgen -W "$("$program" list --names policies 2>/dev/null)" -- "$word"
        compgen -f -X '!*.toml' -- "$word") ;;
    --layout) mapfile -t COMPREPLY < <(compgen -W "$("$program" list --names layouts 2>/dev/null)" -- "$word") ;;
    --names) mapfile -t COMPREPLY < <(compgen -W "variants shapes policies layouts toggles" -- "$word") ;;
    --dtype) _greenfast_list "fp32 fp16 bf16 e4m3" "$word" ;;
    --out-dtype) mapfile -t COMPREPLY < <(compgen -W "fp32 fp16 bf16" -- "$word") ;;
    --device) mapfile -t COMPREPLY < <(compgen -W "auto cpu cuda" -- "$word") ;;
    --model) mapfile -t COMPREPLY < <(compgen -W "cpu h200 h100 a100 l4" -- "$word") ;;
    --causal) mapfile -t COMPREPLY < <(compgen -W "top-left bottom-right" -- "$word") ;;
    evidence) mapfile -t COMPREPLY < <(compgen -W "record import retire verify" -- "$word") ;;
    --inputs | --binary | --limits | --rebuilt | --known) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    --bundle) mapfile -t COMPREPLY < <(compgen -f -X '!*.tar.gz' -- "$word") ;;
    --repo) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    --html) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    --strategy) mapfile -t COMPREPLY < <(compgen -W "exhaustive random halving evolution" -- "$word") ;;
    --simulate | --cache) mapfile -t COMPREPLY < <(compgen -f -X '!*.jsonl' -- "$word") ;;
    --tree) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    --plugin) mapfile -t COMPREPLY < <(compgen -f -X '!*.@(so|cu|c|cc|cpp|cxx)' -- "$word") ;;
    --out) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
  esac
  # The two sides.
  if [[ $command == compare && ${#COMPREPLY[@]} -eq 0 && -n $word && $word != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" list --names variants 2>/dev/null)" -- "$word")
  fi
  # Records and result folders.
  if [[ $command == report && ${#COMPREPLY[@]} -eq 0 && $word != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    compopt -o filenames 2>/dev/null
  fi
  if [[ ${#COMPREPLY[@]} -eq 0 && ( $word == -* || -z $word ) ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_greenfast_options "$program" "$command")" -- "$word")
  fi
}

complete -F _greenfast greenfast
