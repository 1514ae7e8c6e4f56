package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"outrider.org/outrider/agent/readfile"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/join"
)

const maxKeyBytes = 64 << 10

var errUsage = errors.New("wrong usage")

// printToken implements the subcommand token, which signs a join token. It writes the token to out,
// and a description of it to about.
func printToken(arguments []string, out, about io.Writer) error {
	flags := flag.NewFlagSet("outrider-discoveryd token", flag.ContinueOnError)
	flags.SetOutput(about)
	account := flags.String("service-account", "", "`NAMESPACE/NAME` of the only service account "+
		"that the token is for")
	file := flags.String("key", "", "`file` with the private key in PEM that signs it")
	ttl := flags.Duration("ttl", time.Hour, "how long the token is valid, at most 24h")
	if err := flags.Parse(arguments); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if flags.NArg() > 0 || *account == "" || *file == "" {
		return fmt.Errorf("%w: token needs --service-account NAMESPACE/NAME and --key FILE", errUsage)
	}
	key, err := readfile.Read(*file, maxKeyBytes)
	if err != nil {
		return err
	}
	signed, err := join.SignToken(key, *account, time.Now(), *ttl)
	if err != nil {
		return err
	}
	fmt.Fprintf(about, "token %s for service account %s, valid until %s, signed with key %s\n",
		signed.ID, *account, signed.Expires.UTC().Format(time.RFC3339), signed.KeyID)
	_, err = fmt.Fprintln(out, signed.Text)
	return err
}

// tokenCommand runs the subcommand token, and returns the exit code.
func tokenCommand(arguments []string) int {
	err := printToken(arguments, os.Stdout, os.Stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	}
	fmt.Fprintln(os.Stderr, "outrider-discoveryd:", err)
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitProblems
}
