package parts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Verdict is the result of Istio's validation.
type Verdict struct {
	// the stage that refused the object (see scripts/parts/istiod/judge); "": accepted
	Stage    string
	Error    string
	Warnings string
}

// Judge returns the verdict of Istio's validation for each YAML document. The first call builds it,
// which takes minutes.
func Judge(documents []string) ([]Verdict, error) {
	path, err := judge()
	if err != nil {
		return nil, err
	}
	source, err := IstioSource()
	if err != nil {
		return nil, err
	}
	var in bytes.Buffer
	to := json.NewEncoder(&in)
	for _, d := range documents {
		if err := to.Encode(d); err != nil {
			return nil, fmt.Errorf("encode an object: %w", err)
		}
	}
	answers, err := os.CreateTemp("", "outrider-verdicts-")
	if err != nil {
		return nil, fmt.Errorf("create a file for verdicts: %w", err)
	}
	defer func() { _ = answers.Close(); _ = os.Remove(answers.Name()) }()
	command := exec.Command(path, filepath.Join(source, "manifests", "charts", "base", "files",
		"crd-all.gen.yaml"), answers.Name())
	command.Stdin = &in
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ask Istio's validation: %w: %s", err, out)
	}
	verdicts := make([]Verdict, len(documents))
	from := json.NewDecoder(answers)
	for i := range verdicts {
		if err := from.Decode(&verdicts[i]); err != nil {
			return nil, fmt.Errorf("decode verdict %d: %w", i, err)
		}
	}
	return verdicts, nil
}

var judge = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(Root(), "scripts", "get-judge")).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("get Istio's validation: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})
