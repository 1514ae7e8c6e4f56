package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) bugReportCommand() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use: "bug-report",
		Short: "Write a tar file with configuration, state, logs and Envoy's configuration dump, " +
			"secrets removed",
		Long: "Bug-report writes a compressed tar file of what helps to diagnose a problem.\n" +
			"Keys, tokens and passwords are removed; review it nevertheless before you pass\n" +
			"it on. Without an agent the report has less in it. Of the files that the agent\n" +
			"names, it contains configuration and bootstraps below the instance's folders\n" +
			"only; links are not followed.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if file == "" {
				file = "outrider-report-" + a.now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			shown := a.startProgress("collecting", "")
			defer shown.end()
			report, err := a.writeReport(command.Context(), file, shown)
			shown.end()
			if err != nil {
				return err
			}
			said := a.out
			if file == "-" {
				said = a.err
			} else if a.json {
				return a.printJSON(report)
			}
			for _, missing := range report.Missing {
				fmt.Fprintln(a.err, "outrider: not in the report:", missing)
			}
			fmt.Fprintf(said, "%s: %s\n", report.File, count(len(report.Names), "file", "files"))
			return nil
		},
	}
	command.Flags().StringVarP(&file, "output", "o", "",
		"the `file` to write (default outrider-report-TIME.tar.gz); - is standard output")
	return command
}

// reportSummary lists the contents of a report.
type reportSummary struct {
	File    string   `json:"file"`
	Names   []string `json:"names"`
	Missing []string `json:"missing,omitempty"` // missing files, each with the reason
}

// report is a tar archive that is being written.
type report struct {
	tar     *tar.Writer
	root    string // folder in the archive that contains all files
	time    time.Time
	summary reportSummary
	failed  error // first write error; no more is written after it
}

// writeReport writes the report to a new file, or to standard output if file is "-". After an error
// it removes the file.
func (a *app) writeReport(ctx context.Context, file string,
	shown *progress) (reportSummary, error) {
	out := a.out
	var made *os.File
	if file == "-" {
		if a.json {
			return reportSummary{}, usagef("--json and a report on standard output exclude each " +
				"other")
		}
	} else {
		var err error
		if made, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return reportSummary{}, fmt.Errorf("write the report: %w", err)
		}
		defer func() { _ = made.Close() }()
		out = made
	}
	compressed := gzip.NewWriter(out)
	name := strings.TrimSuffix(path.Base(file), ".tar.gz")
	if file == "-" {
		name = "outrider-report"
	}
	r := &report{tar: tar.NewWriter(compressed), root: name, time: a.now().Truncate(time.Second),
		summary: reportSummary{File: file, Names: []string{}}}
	a.collect(ctx, r, shown)
	if len(r.summary.Missing) > 0 {
		r.add("missing.txt", strings.Join(r.summary.Missing, "\n")+"\n")
	}
	err := errors.Join(r.failed, r.tar.Close(), compressed.Close())
	if made != nil {
		err = errors.Join(err, made.Close())
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if made != nil {
			_ = os.Remove(file)
		}
		return reportSummary{}, fmt.Errorf("write the report: %w", err)
	}
	return r.summary, nil
}

// add writes a file to the archive, with secrets removed.
func (r *report) add(name, content string) {
	if r.failed != nil {
		return
	}
	content = redact(content)
	header := &tar.Header{Name: path.Join(r.root, path.Clean("/"+name)), Mode: 0o600,
		Size: int64(len(content)), ModTime: r.time, Typeflag: tar.TypeReg}
	if r.failed = r.tar.WriteHeader(header); r.failed != nil {
		return
	}
	if _, r.failed = io.WriteString(r.tar, content); r.failed == nil {
		r.summary.Names = append(r.summary.Names, name)
	}
}

// missing records that something is missing in the report, with the first line of the reason.
func (r *report) missing(what string, err error) {
	reason, _, _ := strings.Cut(err.Error(), "\n")
	r.summary.Missing = append(r.summary.Missing, what+": "+reason)
}
