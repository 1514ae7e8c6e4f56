// Package cloud reads the locality and labels of this machine from the metadata service of its
// cloud.
package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Metadata describes this machine. Labels are the tags that are valid Kubernetes labels.
type Metadata struct {
	Locality string // region/zone
	Labels   map[string]string
}

// MetadataService reads the metadata service of a cloud. It caches the first result. It is safe for
// concurrent use.
type MetadataService struct {
	URL string // "" = http://169.254.169.254

	mu    sync.Mutex
	facts map[string]Metadata // by cloud
}

// ErrUnavailable is the error of a metadata service that does not answer; a later request may
// succeed.
var ErrUnavailable = errors.New("cannot read the cloud's metadata")

const (
	defaultURL = "http://169.254.169.254"
	timeout    = 3 * time.Second
	bodyLimit  = 1 << 20
	tagsAtMost = 64
)

// Read returns the metadata of a machine in cloud aws, gcp or azure. Errors wrap ErrUnavailable.
func (s *MetadataService) Read(ctx context.Context, cloud string) (Metadata, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if facts, ok := s.facts[cloud]; ok {
		return facts, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	facts, err := map[string]func(context.Context) (Metadata, error){
		"aws": s.aws, "gcp": s.gcp, "azure": s.azure}[cloud](ctx)
	if err != nil {
		return Metadata{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for key, value := range facts.Labels {
		if !label().MatchString(key + "=" + value) {
			// with an invalid label istiod could not create the WorkloadEntry
			delete(facts.Labels, key)
		}
	}
	s.facts = map[string]Metadata{cloud: facts}
	return facts, nil
}

// label matches key=value of a Kubernetes label. It is compiled when needed, as most agents never
// read a metadata service.
var label = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?` +
		`[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?` +
		`=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
})

func (s *MetadataService) aws(ctx context.Context) (Metadata, error) {
	token, err := s.request(ctx, http.MethodPut, "/latest/api/token",
		"X-aws-ec2-metadata-token-ttl-seconds", "60")
	if err != nil {
		return Metadata{}, err
	}
	get := func(at string) ([]byte, error) {
		return s.request(ctx, http.MethodGet, at, "X-aws-ec2-metadata-token", string(token))
	}
	text, err := get("/latest/dynamic/instance-identity/document")
	if err != nil {
		return Metadata{}, err
	}
	var document struct{ Region, AvailabilityZone string }
	if err := json.Unmarshal(text, &document); err != nil {
		return Metadata{}, err
	}
	facts := Metadata{document.Region + "/" + document.AvailabilityZone, map[string]string{}}
	const tags = "/latest/meta-data/tags/instance"
	names, err := get(tags)
	if err != nil {
		return facts, nil //nolint:nilerr // the instance does not allow tags in metadata
	}
	for i, name := range strings.Fields(string(names)) {
		if value, err := get(tags + "/" + name); err == nil && i < tagsAtMost {
			facts.Labels[name] = string(value)
		}
	}
	return facts, nil
}

// gcp returns the metadata without labels, which this metadata service does not have.
func (s *MetadataService) gcp(ctx context.Context) (Metadata, error) {
	text, err := s.request(ctx, http.MethodGet, "/computeMetadata/v1/instance/zone",
		"Metadata-Flavor", "Google")
	if err != nil {
		return Metadata{}, err
	}
	zone := path.Base(string(text)) // of projects/N/zones/ZONE
	region := zone[:max(0, strings.LastIndexByte(zone, '-'))]
	return Metadata{Locality: region + "/" + zone}, nil
}

func (s *MetadataService) azure(ctx context.Context) (Metadata, error) {
	text, err := s.request(ctx, http.MethodGet, "/metadata/instance/compute?api-version=2021-02-01",
		"Metadata", "true")
	if err != nil {
		return Metadata{}, err
	}
	var compute struct {
		Location, Zone string
		TagsList       []struct{ Name, Value string }
	}
	if err := json.Unmarshal(text, &compute); err != nil {
		return Metadata{}, err
	}
	facts := Metadata{strings.TrimSuffix(compute.Location+"/"+compute.Zone, "/"),
		map[string]string{}}
	for _, tag := range compute.TagsList {
		facts.Labels[tag.Name] = tag.Value
	}
	return facts, nil
}

// request returns the body of a response.
func (s *MetadataService) request(
	ctx context.Context, method, at, header, value string,
) ([]byte, error) {
	url := s.URL
	if url == "" {
		url = defaultURL
	}
	request, err := http.NewRequestWithContext(ctx, method, url+at, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(header, value)
	// A Transport without Proxy ignores HTTP_PROXY: the metadata service has a link-local address,
	// which no proxy reaches.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", at, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, bodyLimit))
}
