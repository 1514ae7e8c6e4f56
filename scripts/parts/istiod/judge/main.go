// Command judge validates objects like a cluster with Istio: an API server with Istio's CRDs, and
// istiod's webhook. It reads one JSON string per line that contains a YAML document, and writes one
// line of JSON for each, a Verdict. It writes into a file, because Istio logs to standard output.
//
//	judge crd-all.gen.yaml verdicts <objects
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	kubecrd "istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/crd"
	"istio.io/istio/pkg/config/schema/collections"
	"istio.io/istio/pkg/config/schema/resource"
)

// Verdict is the result of validating one object.
type Verdict struct {
	// Stage is the stage that refused the object: yaml, kind, metadata, spec, crd or istio; "": the
	// object is accepted.
	Stage    string `json:"stage,omitempty"`
	Error    string `json:"error,omitempty"`
	Warnings string `json:"warnings,omitempty"` // warnings of Istio about an accepted object
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return errors.New("usage: judge CRDS VERDICTS <OBJECTS")
	}
	crds, err := crd.NewValidatorFromFilesWithOptions(os.Args[1:2], crd.WithoutCRDValidation())
	if err != nil {
		return fmt.Errorf("read the CRDs: %w", err)
	}
	file, err := os.Create(os.Args[2])
	if err != nil {
		return fmt.Errorf("create the file of verdicts: %w", err)
	}
	defer func() { _ = file.Close() }()
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), bufio.NewWriter(file)
	verdicts := json.NewEncoder(out)
	for {
		var document string
		if err := in.Decode(&document); errors.Is(err, io.EOF) {
			return out.Flush()
		} else if err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		if err := verdicts.Encode(judge(crds, []byte(document))); err != nil {
			return fmt.Errorf("write a verdict: %w", err)
		}
	}
}

// judge validates an object in the order of a cluster: kubectl's strict decoding, the API server's
// checks of the metadata and against the CRD, and Istio's webhook.
func judge(crds *crd.Validator, document []byte) Verdict {
	refuse := func(stage string, err error) Verdict {
		return Verdict{Stage: stage,
			Error: err.Error()}
	}
	u := unstructured.Unstructured{}
	text, err := yaml.YAMLToJSONStrict(document)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(text, &u.Object)
	}
	if err != nil {
		return refuse("yaml", err)
	}
	gvk := u.GroupVersionKind()
	schema, exists := collections.Pilot.FindByGroupVersionAliasesKind(resource.FromKubernetesGVK(
		&gvk))
	if !exists {
		return refuse("kind", fmt.Errorf("unknown kind %s", gvk))
	}
	if err := checkMetadata(u.Object); err != nil {
		return refuse("metadata", err)
	}
	dropNulls(u.Object, gvk.Kind)
	// The API server checks the schema of the CRD before it calls Istio's webhook. Both validate
	// the object as JSON.
	if err := crds.ValidateCustomResource(u.DeepCopy()); err != nil {
		return refuse("crd", err)
	}
	if text, err = json.Marshal(u.Object); err != nil {
		return refuse("yaml", err)
	}
	object := kubecrd.IstioKind{}
	if err := json.Unmarshal(text, &object); err != nil {
		return refuse("metadata", err)
	}
	if object.Namespace == "" {
		object.Namespace = metav1.NamespaceDefault
	}
	converted, err := kubecrd.ConvertObjectInternal(schema, &object, "cluster.local", strict)
	if err != nil {
		return refuse("spec", err)
	}
	warnings, err := schema.ValidateConfig(*converted)
	if err != nil {
		return refuse("istio", err)
	}
	verdict := Verdict{}
	if warnings != nil {
		verdict.Warnings = warnings.Error()
	}
	return verdict
}

func strict(s resource.Schema, text string) (config.Spec, error) {
	spec, err := s.NewInstance()
	if err != nil {
		return nil, err
	}
	return spec, config.ApplyJSONStrict(spec, text)
}

func checkMetadata(object map[string]any) error {
	for key := range object {
		switch key {
		case "apiVersion", "kind", "metadata", "spec", "status":
		default:
			return fmt.Errorf("unknown field %q", key)
		}
	}
	text, err := json.Marshal(object["metadata"])
	if err != nil {
		return err
	}
	var meta metav1.ObjectMeta
	faults, err := kjson.UnmarshalStrict(text, &meta)
	if err = errors.Join(append(faults, err)...); err != nil {
		return err
	}
	if meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	return apivalidation.ValidateObjectMeta(&meta, true, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata")).ToAggregate()
}

// dropNulls removes fields whose value is null, as an API server does for fields in its schema. The
// value of an EnvoyFilter's patch is not in the schema, so its nulls are preserved.
func dropNulls(value any, kind string) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			switch {
			case v == nil:
				delete(value, key)
			case kind != "EnvoyFilter" || key != "value":
				dropNulls(v, kind)
			}
		}
	case []any:
		for _, v := range value {
			dropNulls(v, kind)
		}
	}
}
